//! Between a primary and a follower: messages, records of changes, and positions. A record that is accepted has no more
//! bytes than there were.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use thalweg_replica::protocol::{Answer, FromFollower, FromPrimary};
use thalweg_replica::record::{self, Changes, Part};
use thalweg_net::frame::message_of;
use thalweg_store::block::{BLOCK_SIZE, Version};
use thalweg_store::chain::Position;

fn length(part: &Part) -> usize {
    match part {
        Part::Discard => 0,
        Part::Whole(content) => content.len(),
        Part::Bytes(parts) => {
            parts.iter().for_each(|(at, bytes)| assert!(at + bytes.len() <= BLOCK_SIZE));
            parts.iter().map(|(_, bytes)| bytes.len()).sum()
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let _ = message_of::<FromFollower>(data);
    let _ = message_of::<FromPrimary>(data);
    let _ = message_of::<Answer>(data);
    if let Some(position) =
        std::str::from_utf8(data).ok().and_then(|it| it.parse::<Position>().ok())
    {
        assert_eq!(position.to_string().as_bytes(), data);
    }
    let (mut from, mut before) = (Bytes::copy_from_slice(data), Version(1));
    while !from.is_empty() {
        let left = from.len();
        let Ok(record) = record::decode(before, &mut from) else { return };
        assert!(record.version > before);
        before = record.version;
        if let Changes::Blocks(blocks) = record.changes {
            assert!(
                blocks.iter().map(|(_, part)| length(part)).sum::<usize>() <= left - from.len()
            );
        }
    }
});
