//! Lists in payloads.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thalweg_fs::FsError;

use super::{ListedEntry, MAX_ENTRIES, MAX_PAYLOAD};

/// Decodes a list of at most `max` items. Its length is checked before anything is allocated for the items.
///
/// # Errors
/// [`FsError::Invalid`]
pub fn decode_list<T: DeserializeOwned>(payload: &[u8], max: usize) -> Result<Vec<T>, FsError> {
    match decode_first(payload, max)? {
        (items, []) => Ok(items),
        _ => Err(FsError::Invalid("a list does not decode")),
    }
}

/// The entries of a directory in an answer, each with whether its attributes may be cached.
///
/// # Errors
/// [`FsError::Invalid`]
pub fn decode_entries(payload: &[u8]) -> Result<Vec<(ListedEntry, bool)>, FsError> {
    let (entries, kept) = decode_first::<ListedEntry>(payload, MAX_ENTRIES)?;
    if !kept.is_empty() && kept.len() != entries.len() {
        return Err(FsError::Invalid("a list does not decode"));
    }
    let kept = kept.iter().map(|kept| *kept == 1).chain(std::iter::repeat(false));
    Ok(entries.into_iter().zip(kept).collect())
}

/// Decodes a list, and returns what is behind it.
fn decode_first<T: DeserializeOwned>(
    payload: &[u8],
    max: usize,
) -> Result<(Vec<T>, &[u8]), FsError> {
    let invalid = |_| FsError::Invalid("a list does not decode");
    let (len, _) = postcard::take_from_bytes::<u64>(payload).map_err(invalid)?;
    if usize::try_from(len).map_or(true, |len| len > max) {
        return Err(FsError::Invalid("a list has too many items"));
    }
    let (items, rest) = postcard::take_from_bytes::<Vec<T>>(payload).map_err(invalid)?;
    assert!(items.len() as u64 == len, "a list has its length in front");
    Ok((items, rest))
}

/// Decodes a list, each item with where its encoding ends in the payload.
///
/// # Errors
/// [`FsError::Invalid`]
pub fn decode_list_with_ends<T: DeserializeOwned>(
    payload: &[u8],
    max: usize,
) -> Result<Vec<(T, usize)>, FsError> {
    let invalid = |_| FsError::Invalid("a list does not decode");
    let (len, mut rest) = postcard::take_from_bytes::<u64>(payload).map_err(invalid)?;
    if usize::try_from(len).map_or(true, |len| len > max) {
        return Err(FsError::Invalid("a list has too many items"));
    }
    let mut items = Vec::new();
    for _ in 0..len {
        let (item, behind) = postcard::take_from_bytes::<T>(rest).map_err(invalid)?;
        rest = behind;
        items.push((item, payload.len() - rest.len()));
    }
    match rest.is_empty() {
        true => Ok(items),
        false => Err(FsError::Invalid("there is something behind a list")),
    }
}

/// Encodes a list. The caller bounds its length, so that it fits into a payload.
pub fn encode_list<T: Serialize>(items: &[T]) -> Bytes {
    let encoded = postcard::to_allocvec(items).expect("a list in memory encodes");
    assert!(encoded.len() <= MAX_PAYLOAD, "a list of {} items is too long", items.len());
    encoded.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_bounded_before_they_are_decoded() {
        let list = |len: u64| postcard::to_allocvec(&(0..len).collect::<Vec<u64>>()).unwrap();
        for len in [0, 1, 127, 128, 300] {
            assert_eq!(decode_list::<u64>(&list(len), 300).unwrap().len() as u64, len);
        }
        let refused = |payload: &[u8]| decode_list::<u64>(payload, 300).unwrap_err().to_string();
        assert!(refused(&list(301)).contains("too many items"));
        // The length alone, with nothing behind it.
        assert!(refused(&postcard::to_allocvec(&u64::MAX).unwrap()).contains("too many items"));
        assert!(refused(&list(300)[..200]).contains("does not decode"));
        assert!(refused(&[&list(3)[..], b"x"].concat()).contains("does not decode"));
        assert!(refused(b"").contains("does not decode"));
    }
}
