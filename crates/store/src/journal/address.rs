//! The address in a tag.

use std::fmt;

use integer_encoding::VarInt;

use crate::block::Lba;

/// The address of a block, of the user's type; encodes as a short distance from the previous one.
pub trait Address: Copy + Ord + fmt::Debug + Send + Sync + 'static {
    /// Appends the address. `before`: the address of the previous tag in the same transaction.
    fn encode(self, before: Option<Self>, to: &mut Vec<u8>);

    /// Takes an address off the front; `None` for invalid bytes.
    fn decode(from: &mut &[u8], before: Option<Self>) -> Option<Self>;

    /// The address `count` blocks further; `None` when there is none.
    fn plus(self, count: u64) -> Option<Self>;
}

impl Address for Lba {
    fn encode(self, before: Option<Lba>, to: &mut Vec<u8>) {
        let before = before.map_or(0, |before| before.0);
        put_var(self.0.wrapping_sub(before).cast_signed(), to);
    }

    fn decode(from: &mut &[u8], before: Option<Lba>) -> Option<Lba> {
        let before = before.map_or(0, |before| before.0);
        let distance: i64 = take_var(from)?;
        Some(Lba(before.wrapping_add(distance.cast_unsigned())))
    }

    fn plus(self, count: u64) -> Option<Lba> {
        self.0.checked_add(count).map(Lba)
    }
}

/// Appends a number in LEB128.
pub(super) fn put_var<N: VarInt>(number: N, to: &mut Vec<u8>) {
    let mut bytes = [0; 10];
    let len = number.encode_var(&mut bytes);
    to.extend_from_slice(&bytes[..len]);
}

/// Takes a number in LEB128 off the front.
pub(super) fn take_var<N: VarInt>(from: &mut &[u8]) -> Option<N> {
    let (number, len) = N::decode_var(from)?;
    *from = from.get(len..)?;
    Some(number)
}
