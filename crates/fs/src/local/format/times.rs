//! Times in records.

use crate::attributes::Timestamp;

/// Encodes a time in 64 bits: seconds in the high 34, which reach from 1697 to 2242, and nanoseconds.
pub fn encode_time(time: Timestamp) -> u64 {
    let most = 1 << 33;
    let seconds = time.seconds.clamp(-most, most - 1);
    (seconds << 30) as u64 | u64::from(time.nanos.min(999_999_999))
}

/// Decodes a time.
pub fn decode_time(stored: u64) -> Timestamp {
    Timestamp { seconds: stored as i64 >> 30, nanos: (stored & ((1 << 30) - 1)) as u32 }
}
