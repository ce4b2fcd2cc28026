//! The checksum of all stored structures: CRC-32C, for which processors have instructions.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The CRC-32C of parts, as if they were one.
pub fn crc32c_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.into_iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

/// The CRC-32C of `first` and then `rest`, as if they were one.
pub(crate) fn crc32c_of_both(first: &[u8], rest: &[u8]) -> u32 {
    crc32c_of([first, rest])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_checksum_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[]), 0);
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn parts_are_as_good_as_the_whole() {
        let bytes: Vec<u8> = (0..5000u32).map(|at| (at * 7 + at / 256) as u8).collect();
        for split in [0, 1, 8, 15, 16, 255, 256, 257, 4096, 4999, 5000] {
            let (first, rest) = bytes.split_at(split);
            assert_eq!(crc32c_of_both(first, rest), crc32c(&bytes));
        }
    }
}
