//! Finds foreign content on a device, by the magic numbers of other formats.

use crate::device::{Device, DeviceError, Purpose};

/// A signature: bytes at a place.
struct Signature {
    at: u64,
    bytes: &'static [u8],
    what: &'static str,
}

const fn signature(at: u64, bytes: &'static [u8], what: &'static str) -> Signature {
    Signature { at, bytes, what }
}

const SIGNATURES: &[Signature] = &[
    signature(1080, &[0x53, 0xef], "an ext2, ext3 or ext4 filesystem"),
    signature(0, b"XFSB", "an XFS filesystem"),
    signature(0x1_0040, b"_BHRfS_M", "a Btrfs filesystem"),
    signature(0, b"LABELONE", "an LVM physical volume"),
    signature(512, b"LABELONE", "an LVM physical volume"),
    signature(1024, b"LABELONE", "an LVM physical volume"),
    signature(1536, b"LABELONE", "an LVM physical volume"),
    signature(4086, b"SWAPSPACE2", "swap space"),
    signature(4086, b"SWAP-SPACE", "swap space"),
    signature(0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    signature(0, &[0xfc, 0x4e, 0x2b, 0xa9], "a side of an MD array"),
    signature(4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a side of an MD array"),
    signature(512, b"EFI PART", "a partition table (GPT)"),
    signature(4096, b"EFI PART", "a partition table (GPT)"),
    // The boot sectors of FAT and NTFS end with these bytes too.
    signature(510, &[0x55, 0xaa], "a partition table or boot sector"),
];

/// Bytes from the start that contain every signature.
const LOOKED_AT: u64 = 128 * 1024;

/// The name of the known content on `device`, if there is any.
pub(super) async fn foreign(device: &dyn Device) -> Result<Option<&'static str>, DeviceError> {
    let len = device.geometry().size.min(LOOKED_AT);
    Ok(foreign_content(&device.read(0, len as usize, Purpose::Label).await?))
}

/// The name of the known content that begins with `start`, if there is any.
pub(crate) fn foreign_content(start: &[u8]) -> Option<&'static str> {
    let holds = |signature: &&Signature| {
        let at = signature.at as usize;
        start.get(at..at + signature.bytes.len()) == Some(signature.bytes)
    };
    SIGNATURES.iter().find(holds).map(|signature| signature.what)
}
