//! The records of redirects.

use std::ops::Range;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::local::format::{Tag, key, parse_key};

/// Most bytes of a redirect, so that a part of a file can be placed alone.
pub(super) const LONGEST: u64 = 1 << 20;

/// Where bytes of a file are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::local) struct Redirect {
    /// How many.
    pub(in crate::local) len: u64,
    /// The first byte in the file aside.
    pub(in crate::local) at: u64,
}

/// What the record of a redirect says; its key has the file and the offset.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RedirectRecord {
    len: U64,
    at: U64,
}

/// The objects of the file aside that may be there.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct BoundsRecord {
    first: U64,
    end: U64,
}

pub(in crate::local) fn bounds_key() -> Vec<u8> {
    key(0, Tag::Redirect, &[])
}

pub(in crate::local) fn redirect_key(ino: u64, offset: u64) -> Vec<u8> {
    key(0, Tag::Redirect, &[ino.to_be_bytes(), offset.to_be_bytes()].concat())
}

/// A record of redirects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::local) enum Parsed {
    /// The objects that may be there.
    Bounds(Range<u64>),
    /// Bytes of a file from an offset on.
    Redirect(u64, u64, Redirect),
}

/// A record of redirects; `None` when it is invalid.
pub(in crate::local) fn parse_redirect(key: &[u8], value: &[u8]) -> Option<Parsed> {
    let (0, Tag::Redirect, rest) = parse_key(key)? else { return None };
    if rest.is_empty() {
        let BoundsRecord { first, end } = BoundsRecord::read_from_bytes(value).ok()?;
        return (first <= end).then(|| Parsed::Bounds(first.get()..end.get()));
    }
    let (ino, offset) = rest.split_first_chunk()?;
    let (ino, offset) = (u64::from_be_bytes(*ino), u64::from_be_bytes(offset.try_into().ok()?));
    let RedirectRecord { len, at } = RedirectRecord::read_from_bytes(value).ok()?;
    let redirect = Redirect { len: len.get(), at: at.get() };
    let fits = |from: u64| from.checked_add(redirect.len).is_some();
    let is_sound = redirect.len > 0 && redirect.len <= LONGEST && fits(offset) && fits(redirect.at);
    is_sound.then_some(Parsed::Redirect(ino, offset, redirect))
}

/// The record of the objects that may be there.
pub(in crate::local) fn bounds_record(bounds: &Range<u64>) -> Vec<u8> {
    let record = BoundsRecord { first: bounds.start.into(), end: bounds.end.into() };
    record.as_bytes().to_vec()
}

/// The record of a redirect.
pub(super) fn redirect_record(Redirect { len, at }: Redirect) -> Vec<u8> {
    RedirectRecord { len: len.into(), at: at.into() }.as_bytes().to_vec()
}
