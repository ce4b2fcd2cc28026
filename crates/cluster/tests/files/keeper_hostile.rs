//! Peers of a keeper that are no clients.

use bytes::Bytes;
use thalweg_cluster::protocol::keep::{HELLO, KeepAnswer, KeepCall, KeepRefusal};
use thalweg_env::Task;
use thalweg_fs::session_table::JournalPosition;
use thalweg_net::channel::{Channel, Limits, NoCalls, Side};
use thalweg_sim::run;
use uuid::Uuid;

use crate::journal::{Journaled, SIZE};
use crate::keeper_node::KeeperNode;
use crate::keepers::kept;
use crate::scene::*;

/// A client that speaks to a keeper by itself.
struct Raw {
    channel: Channel,
    _running: Task<std::io::Result<()>>,
}

impl Raw {
    async fn new(scene: &Scene, machine: &Journaled, keeper: &KeeperNode) -> Raw {
        let mut stream = keeper.target(machine).connector.connect().await.unwrap();
        HELLO.exchange(&mut stream).await.unwrap();
        let (reader, writer) = tokio::io::split(stream);
        let channel = Channel::new(&scene.env, Side::Connecting, Limits::default(), writer);
        let receiving = channel.clone();
        let _running = scene.env.spawn(async move { receiving.run(reader, &NoCalls).await });
        Raw { channel, _running }
    }

    async fn ask(&self, call: KeepCall) -> KeepAnswer {
        self.channel.call(&call, &[Bytes::from_static(b"body")]).await.unwrap().0
    }
}

fn attach(session: Uuid, size: u64) -> KeepCall {
    KeepCall::Attach { session, before: None, size, is_durable: true, after: at(0) }
}

fn at(position: u64) -> JournalPosition {
    JournalPosition { position, hash: position }
}

/// A record, or with a mark something like one, of these positions.
fn append(session: Uuid, (first, last): (u64, u64), mark: Option<u8>) -> KeepCall {
    let header = match mark {
        None => postcard::to_allocvec(&(6u8, session, first)),
        Some(_) => postcard::to_allocvec(&(4u8, session, first)),
    };
    let (before, hash) = (first.saturating_sub(1), last);
    let mut header = header.unwrap();
    header.extend([before, hash].iter().flat_map(|it| it.to_le_bytes()));
    // What is durable, and the mark.
    header.push(0);
    header.extend(mark);
    KeepCall::Append { stamp: last, header: header.into(), released: 0, anew: false }
}

/// The same record with another byte in its header.
fn changed(mut call: KeepCall, at: usize) -> KeepCall {
    if let KeepCall::Append { header, .. } = &mut call {
        let mut changed = header.to_vec();
        changed[at] ^= 1;
        *header = changed.into();
    }
    call
}

#[test]
fn a_keeper_refuses_what_no_client_sends() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (machine, keepers) = kept(&scene, &[true]).await;
        let (session, other) = (env.uuid(), env.uuid());
        let raw = Raw::new(&scene, &machine, &keepers[0]).await;
        let refused = |refusal| KeepAnswer::Refused(refusal);
        let early = raw.ask(append(session, (1, 1), None)).await;
        assert_eq!(early, refused(KeepRefusal::Displaced));
        for size in [0, 1000, u64::MAX] {
            let answer = raw.ask(attach(session, size)).await;
            assert!(matches!(answer, KeepAnswer::Refused(KeepRefusal::Failed(_))), "{answer:?}");
        }
        let first = KeepAnswer::Attached { end: at(0) };
        assert_eq!(raw.ask(attach(session, SIZE)).await, first);
        let garbage = KeepCall::Append {
            stamp: 7,
            header: Bytes::from_static(b"no header"),
            released: u64::MAX,
            anew: true,
        };
        for wrong in [
            garbage,
            append(other, (1, 1), None),
            append(session, (1, 0), Some(1)),
            append(session, (5, 3), None),
            append(session, (0, 0), None),
        ] {
            assert_eq!(raw.ask(wrong.clone()).await, refused(KeepRefusal::Invalid), "{wrong:?}");
        }
        assert_eq!(raw.ask(append(session, (1, 3), None)).await, KeepAnswer::Done);
        // The same again is there; what overlaps with it, or leaves something out, is refused.
        assert_eq!(raw.ask(append(session, (1, 3), None)).await, KeepAnswer::Done);
        for positions in [(3, 5), (5, 6)] {
            let answer = raw.ask(append(session, positions, None)).await;
            assert_eq!(answer, refused(KeepRefusal::Gap { next: 4 }));
        }
        // The same positions with other changes, and what follows those.
        for call in
            [changed(append(session, (1, 3), None), 27), changed(append(session, (4, 4), None), 19)]
        {
            assert_eq!(raw.ask(call).await, refused(KeepRefusal::Diverged));
        }
        // Another connection goes on where this one was, and this one not.
        let second = Raw::new(&scene, &machine, &keepers[0]).await;
        assert_eq!(second.ask(attach(session, SIZE)).await, KeepAnswer::Attached { end: at(3) });
        for call in [append(session, (4, 4), None), KeepCall::Release(9), KeepCall::End] {
            assert_eq!(raw.ask(call).await, refused(KeepRefusal::Displaced));
        }
        // Another client has no part in it.
        keepers[0].keeper.seal("b").await.unwrap();
        assert_eq!(second.ask(append(session, (4, 4), None)).await, KeepAnswer::Done);
        assert_eq!(keepers[0].keeper.seal("a").await.unwrap().len(), 1);
        for call in [append(session, (5, 5), None), attach(session, SIZE), KeepCall::End] {
            let answer = second.ask(call).await;
            assert!(matches!(answer, KeepAnswer::Refused(_)), "{answer:?}");
        }
        let answer = second.ask(attach(session, SIZE)).await;
        assert_eq!(answer, refused(KeepRefusal::TakenOver));
        // A client leaves no more copies than a keeper has room for.
        for number in 0..40 {
            let answer = second.ask(attach(env.uuid(), SIZE)).await;
            assert_eq!(matches!(answer, KeepAnswer::Attached { .. }), number < 31, "{answer:?}");
        }
    });
}
