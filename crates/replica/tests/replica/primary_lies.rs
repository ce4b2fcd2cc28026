//! A follower takes nothing that does not fit: the test is the primary.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use thalweg_env::Env;
use thalweg_net::channel::{Channel, Handler, Incoming, Limits, Side};
use thalweg_replica::protocol::{Answer, FromFollower, FromPrimary, HELLO, Refusal, State};
use thalweg_replica::{Follower, Stopped, record};
use thalweg_sim::run;
use thalweg_store::block::{BLOCK_SIZE, Blocks, Lba, Version, Write, WriteList};
use thalweg_store::chain::{Chain, Change, History, Shrink, Timeline};
use thalweg_store::checksum::crc32c;
use uuid::Uuid;

use crate::cluster::{BLOCKS, follower_chain};

/// Answers every follower alike, and then says what it was given.
struct Liar {
    channel: Channel,
    answer: Answer,
    says: Vec<(FromPrimary, Bytes)>,
}

impl Handler for Liar {
    async fn handle(&self, call: Incoming) -> io::Result<()> {
        if let FromFollower::Follow(State { .. }) = call.decode().map_err(io::Error::other)? {
            self.channel.answer(call.id, &self.answer, &[]);
            for (message, payload) in &self.says {
                let payload = std::slice::from_ref(payload);
                self.channel.tell(message, payload).map_err(io::Error::other)?;
            }
            self.channel.flush_soon();
        }
        Ok(())
    }
}

fn follows() -> Answer {
    let timeline = Timeline { id: Uuid::from_u128(1), from: Version(0) };
    Answer::Follows {
        history: History::new(vec![timeline]).unwrap(),
        term: 0,
        blocks: BLOCKS,
        shrink: None,
    }
}

/// Why a follower stops that hears this, and its newest version then.
async fn hear(env: &Env, answer: Answer, says: Vec<(FromPrimary, Bytes)>) -> (Stopped, Arc<Chain>) {
    let chain = follower_chain(env).await;
    let follower = Follower::new(env, chain.clone());
    let (mine, mut theirs) = tokio::io::duplex(1 << 20);
    let on = env.clone();
    let lying = env.spawn(async move {
        HELLO.exchange(&mut theirs).await.unwrap();
        let (reader, writer) = tokio::io::split(theirs);
        let channel = Channel::new(&on, Side::Accepting, Limits::default(), writer);
        let liar = Liar { channel: channel.clone(), answer, says };
        drop(channel.run(reader, &liar).await);
    });
    let stopped = follower.follow(mine).await;
    drop(lying);
    (stopped, chain)
}

/// Records of one block each as the versions after `after`.
fn changes(after: u64, count: u64) -> (FromPrimary, Bytes) {
    let mut payload = BytesMut::new();
    for version in after + 1..=after + count {
        let content = Bytes::from(vec![version as u8; BLOCK_SIZE]);
        let writes = WriteList::new(vec![Write::block(Lba(version), content)]).unwrap();
        record::encode(
            Version(version - 1),
            Version(version),
            Change::Writes(&writes),
            &mut payload,
        );
    }
    let payload = payload.freeze();
    let checksum = crc32c(&payload);
    (FromPrimary::Changes { after: Version(after), checksum, total: None }, payload)
}

fn durable(version: u64) -> (FromPrimary, Bytes) {
    (FromPrimary::Durable(Version(version)), Bytes::new())
}

#[test]
fn a_gap_in_the_stream_ends_the_connection() {
    run(1, |env| async move {
        let says = vec![changes(0, 3), durable(9), changes(4, 2)];
        let (stopped, chain) = hear(&env, follows(), says).await;
        assert!(matches!(&stopped, Stopped::Lost(why) if why.contains("missing")), "{stopped}");
        assert_eq!(chain.now(), Version(3));
    });
}

/// The answer of a primary that knows no bounds.
#[derive(serde::Serialize)]
enum Wild {
    Is,
    Follows(Vec<Timeline>, u32, u64, Option<Shrink>),
}

#[test]
fn a_history_that_no_label_has_room_for_is_not_taken() {
    let timeline = |number| Timeline { id: Uuid::from_u128(number), from: Version(number as u64) };
    let decode = |timelines: Vec<Timeline>| {
        let bytes = postcard::to_allocvec(&Wild::Follows(timelines, 0, BLOCKS, None)).unwrap();
        postcard::from_bytes::<Answer>(&bytes)
    };
    assert!(matches!(decode((0..64).map(timeline).collect()), Ok(Answer::Follows { .. })));
    assert!(decode((0..65).map(timeline).collect()).is_err());
    assert!(decode(vec![timeline(2), timeline(1)]).is_err());
    assert!(postcard::to_allocvec(&Wild::Is).is_ok());
}

#[test]
fn what_it_has_already_is_skipped() {
    run(2, |env| async move {
        let says = vec![changes(0, 3), durable(9), changes(1, 4), changes(7, 1)];
        let (_, chain) = hear(&env, follows(), says).await;
        assert_eq!(chain.now(), Version(5));
    });
}

#[test]
fn damaged_changes_and_ones_that_are_none_end_the_connection() {
    run(3, |env| async move {
        let (FromPrimary::Changes { after, .. }, payload) = changes(0, 2) else { panic!() };
        let torn = payload.slice(..payload.len() - 1);
        let checksum = crc32c(&torn);
        let changes = |checksum| FromPrimary::Changes { after, checksum, total: None };
        let (right, wrong) = (changes(checksum), changes(checksum ^ 1));
        for says in [(right, torn), (wrong, payload)] {
            let says = vec![says, durable(2)];
            let (stopped, chain) = hear(&env, follows(), says).await;
            assert!(matches!(stopped, Stopped::Lost(_)), "{stopped}");
            assert_eq!(chain.now(), Version(0));
        }
    });
}

#[test]
fn a_block_beyond_the_volume_is_refused() {
    run(4, |env| async move {
        let says = vec![changes(100_000, 1)];
        // It comes after a version that the follower has not reached.
        let (stopped, _) = hear(&env, follows(), says).await;
        assert!(matches!(stopped, Stopped::Lost(_)), "{stopped}");
        let mut payload = BytesMut::new();
        let change = Change::Discard { lba: Lba(1 << 30), count: 7 };
        record::encode(Version(0), Version(1), change, &mut payload);
        let payload = payload.freeze();
        let checksum = crc32c(&payload);
        let changes = FromPrimary::Changes { after: Version(0), checksum, total: None };
        let says = vec![(changes, payload), durable(1)];
        let (stopped, chain) = hear(&env, follows(), says).await;
        assert!(matches!(stopped, Stopped::Chain(_)), "{stopped}");
        assert_eq!(chain.now(), Version(0));
    });
}

#[test]
fn a_primary_that_falls_silent_is_lost() {
    run(5, |env| async move {
        let begun = env.now();
        let (stopped, _) = hear(&env, follows(), vec![changes(0, 1)]).await;
        assert!(matches!(&stopped, Stopped::Lost(why) if why.contains("silent")), "{stopped}");
        assert!(env.now().since(begun) < Duration::from_secs(30));
    });
}

#[test]
fn a_refusal_is_told_from_a_broken_connection() {
    run(6, |env| async move {
        let answer = Answer::Refused(Refusal::Apart(Version(7)));
        let (stopped, _) = hear(&env, answer, Vec::new()).await;
        assert!(matches!(stopped, Stopped::Refused(Refusal::Apart(Version(7)))), "{stopped}");
    });
}
