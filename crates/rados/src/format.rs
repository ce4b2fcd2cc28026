//! The layout of a device on objects.
//!
//! Objects of an image:
//!
//! | object | content |
//! |---|---|
//! | `IMAGE.header` | [`Header`], of [`HEADER`] bytes, little endian |
//! | `IMAGE.NUMBER` | bytes `NUMBER * object_size` and following of the device; the number has 16 hexadecimal digits |
//!
//! An absent data object is zeros, and so are bytes behind an object's end. Each data object has the attribute
//! [`EPOCH`]: the epoch of the opening that wrote it last, as 16 hexadecimal digits. Objects of contents of files have
//! it too, named `IMAGE@FILESYSTEM.INODE.STRIPE` in as many digits each.

use bytes::Bytes;
use thalweg_fs::Timestamp;
use thalweg_fs::contents::SizeRecord;
use thalweg_store::checksum::crc32c;
use uuid::Uuid;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The attribute with the epoch.
pub const EPOCH: &str = "thalweg.epoch";

/// The attribute of a header with the last beat of the image's server.
pub const BEAT: &str = "thalweg.beat";

/// The attribute of an object of a file with the [`SizeRecord`] that was stored with its bytes.
pub const SIZE_RECORD: &str = "thalweg.tail";
/// Its value when that was removed.
pub(crate) const NO_TAIL: Bytes = Bytes::from_static(b"-");

const MAGIC: [u8; 8] = *b"TWRADOS\0";
const VERSION: u16 = 1;
/// Objects are at most this long: Ceph refuses single writes of more than 90 MB.
const MAX_OBJECT: u64 = 64 << 20;

/// The header of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Identity of the image, given when it is created.
    pub identity: Uuid,
    /// Size of the device in bytes: whole sectors.
    pub size: u64,
    /// Size of an object in bytes: whole sectors.
    pub object_size: u64,
    /// 512 or 4096.
    pub sector: u32,
    /// The number of openings for writing so far.
    pub epoch: u64,
}

/// A [`SizeRecord`] in its attribute.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SizeRecordValue {
    end: U64,
    seconds: I64,
    nanos: U32,
}

/// [`Header`] on its object.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderBytes {
    magic: [u8; 8],
    version: U16,
    /// Zero.
    reserved: U16,
    sector: U32,
    identity: [u8; 16],
    size: U64,
    object_size: U64,
    epoch: U64,
    /// Zero.
    unused: U32,
    /// CRC-32C of all bytes before it.
    checksum: U32,
}

/// Bytes of a header.
pub const HEADER: usize = 64;
const _: () = assert!(size_of::<HeaderBytes>() == HEADER);

/// Why bytes are no header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Their number is wrong.
    #[error("it has {found} bytes, and a header has {HEADER}")]
    Length {
        /// Their number.
        found: usize,
    },
    /// They do not begin as a header.
    #[error("its magic is not that of an image")]
    Magic,
    /// They are damaged.
    #[error("its checksum is wrong: it is damaged")]
    Checksum,
    /// Another release wrote them.
    #[error("its version is {found}; this release reads version {VERSION}")]
    Version {
        /// The version.
        found: u16,
    },
    /// A field has a value that no device has.
    #[error("its {field} is invalid: {found}")]
    Field {
        /// The field's name.
        field: &'static str,
        /// Its value.
        found: u64,
    },
}

impl Header {
    /// Checks what a caller, or another machine, supplied.
    ///
    /// # Errors
    /// [`HeaderError::Field`]: the first field that is invalid.
    pub fn check(&self) -> Result<(), HeaderError> {
        let sector = u64::from(self.sector);
        let invalid = |field, found| Err(HeaderError::Field { field, found });
        if ![512, 4096].contains(&sector) {
            return invalid("sector", sector);
        }
        let object = self.object_size;
        if object == 0 || object > MAX_OBJECT || !object.is_multiple_of(sector) {
            return invalid("object size", object);
        }
        if !self.size.is_multiple_of(sector) || self.size > i64::MAX as u64 {
            return invalid("size", self.size);
        }
        Ok(())
    }

    /// The bytes of the header.
    pub fn encode(&self) -> Bytes {
        let mut bytes = HeaderBytes {
            magic: MAGIC,
            version: VERSION.into(),
            reserved: 0.into(),
            sector: self.sector.into(),
            identity: self.identity.into_bytes(),
            size: self.size.into(),
            object_size: self.object_size.into(),
            epoch: self.epoch.into(),
            unused: 0.into(),
            checksum: 0.into(),
        };
        bytes.checksum = checksum(bytes.as_bytes()).into();
        Bytes::copy_from_slice(bytes.as_bytes())
    }

    /// The header in `bytes`.
    ///
    /// # Errors
    /// A [`HeaderError`] when they are none.
    pub fn decode(bytes: &[u8]) -> Result<Header, HeaderError> {
        let header = HeaderBytes::read_from_bytes(bytes)
            .map_err(|_| HeaderError::Length { found: bytes.len() })?;
        if header.magic != MAGIC {
            return Err(HeaderError::Magic);
        }
        if header.checksum.get() != checksum(bytes) {
            return Err(HeaderError::Checksum);
        }
        if header.version.get() != VERSION {
            return Err(HeaderError::Version { found: header.version.get() });
        }
        let header = Header {
            identity: Uuid::from_bytes(header.identity),
            size: header.size.get(),
            object_size: header.object_size.get(),
            sector: header.sector.get(),
            epoch: header.epoch.get(),
        };
        header.check()?;
        Ok(header)
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c(&bytes[..HEADER - 4])
}

/// The name of an image's header.
pub(crate) fn header_name(image: &str) -> String {
    format!("{image}.header")
}

/// The name of an image's data object.
pub(crate) fn data_name(image: &str, number: u64) -> String {
    format!("{image}.{number:016x}")
}

/// The number of a data object of `image`, if `name` is one's.
pub(crate) fn data_number(image: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(image)?.strip_prefix('.')?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// The name of an object with a part of a file: its inode, and the number of the stripe.
pub(crate) fn stripe_name(prefix: &str, inode: u64, stripe: u64) -> String {
    format!("{prefix}.{inode:016x}.{stripe:016x}")
}

/// Inode and number of a stripe, if `name` is that of one.
pub(crate) fn stripe_number(prefix: &str, name: &str) -> Option<(u64, u64)> {
    let (inode, stripe) = name.strip_prefix(prefix)?.strip_prefix('.')?.split_once('.')?;
    let number =
        |digits: &str| (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten();
    Some((number(inode)?, number(stripe)?))
}

/// What the names of objects with contents of files begin with, for a filesystem on `image`. No image has such a name:
/// `@` is no part of them.
pub(crate) fn files_prefix(image: &str, filesystem: &str) -> String {
    format!("{image}@{filesystem}")
}

/// Whether an object has contents of files of any filesystem on `image`.
pub(crate) fn is_of_files(image: &str, name: &str) -> bool {
    let of_files = name.strip_prefix(image).and_then(|rest| rest.strip_prefix('@'));
    // A filesystem's name may have points too.
    let numbers = of_files.and_then(|rest| rest.len().checked_sub("..".len() + 2 * 16));
    let stripe = of_files.zip(numbers).and_then(|(rest, len)| {
        let filesystem = rest.get(..len)?;
        stripe_number(&files_prefix(image, filesystem), name)
    });
    stripe.is_some()
}

/// The value of [`SIZE_RECORD`].
pub(crate) fn size_record_value(size_record: SizeRecord) -> Bytes {
    let (end, seconds) = (size_record.end.into(), size_record.modified.seconds.into());
    Bytes::copy_from_slice(
        SizeRecordValue { end, seconds, nanos: size_record.modified.nanos.into() }.as_bytes(),
    )
}

/// The size record in an attribute; `None` if that has none.
pub(crate) fn size_record_of(value: &[u8]) -> Option<SizeRecord> {
    let SizeRecordValue { end, seconds, nanos } = SizeRecordValue::read_from_bytes(value).ok()?;
    let (seconds, nanos) = (seconds.get(), nanos.get());
    (end.get() > 0 && nanos < 1_000_000_000)
        .then_some(SizeRecord { end: end.get(), modified: Timestamp { seconds, nanos } })
}

/// The value of [`EPOCH`]: 16 hexadecimal digits, which compare as texts like the numbers that they are of.
pub(crate) fn epoch_value(epoch: u64) -> Bytes {
    format!("{epoch:016x}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            identity: Uuid::from_bytes([0x11; 16]),
            size: 10 << 20,
            object_size: 4 << 20,
            sector: 4096,
            epoch: 7,
        }
    }

    #[test]
    fn a_header_has_these_bytes() {
        let bytes = header().encode();
        let mut golden = b"TWRADOS\0\x01\0\0\0\x00\x10\0\0".to_vec();
        golden.extend([0x11; 16]);
        golden
            .extend([0, 0, 0xa0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend([0; 4]);
        assert_eq!(bytes[..60], golden[..]);
        assert_eq!(Header::decode(&bytes), Ok(header()));
    }

    #[test]
    fn damaged_and_foreign_headers_are_refused() {
        let bytes = header().encode();
        for at in 0..HEADER {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1;
            assert!(Header::decode(&damaged).is_err(), "byte {at}");
        }
        assert_eq!(Header::decode(&bytes[..63]), Err(HeaderError::Length { found: 63 }));
        for (field, header) in [
            ("sector", Header { sector: 1000, ..header() }),
            ("object size", Header { object_size: 0, ..header() }),
            ("object size", Header { object_size: 4097, ..header() }),
            ("size", Header { size: 100, ..header() }),
        ] {
            let decoded = Header::decode(&header.encode());
            assert!(
                matches!(decoded, Err(HeaderError::Field { field: found, .. }) if found == field)
            );
        }
    }

    #[test]
    fn names_are_read_back_and_others_are_not() {
        let name = data_name("a.b", 0x1234);
        assert_eq!(name, "a.b.0000000000001234");
        assert_eq!(data_number("a.b", &name), Some(0x1234));
        assert_eq!(data_number("a", &name), None);
        assert_eq!(data_number("a.b", &header_name("a.b")), None);
        let name = stripe_name("fs", 7, 8);
        assert_eq!(stripe_number("fs", &name), Some((7, 8)));
        assert_eq!(stripe_number("fs", "fs.7.8"), None);
        assert!(epoch_value(9) < epoch_value(10));
        let name = stripe_name(&files_prefix("a.b", "f.s"), 7, 8);
        assert_eq!(name, "a.b@f.s.0000000000000007.0000000000000008");
        assert!(is_of_files("a.b", &name) && !is_of_files("a", &name));
        assert!(!is_of_files("a.b", "a.b@fs.7.8") && !is_of_files("a.b", "a.b@"));
        assert!(
            !is_of_files("a.b", &header_name("a.b")) && !is_of_files("a.b", &data_name("a.b", 1))
        );
    }
}
