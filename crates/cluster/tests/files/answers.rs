//! Calls that are not answered where they came, or not as they were carried out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::protocol::{Answer, Reply, Request};
use thalweg_cluster::server::Options;
use thalweg_fs::{AttributeChange, Caller, Handle, Ino, Node, PageCache, WriteAt, WriteHow};
use thalweg_sim::files::NaiveFiles;
use thalweg_sim::run;
use thalweg_store::device::Operation;

use crate::peer::{Peer, call};
use crate::scene::*;

fn create(name: &'static [u8]) -> Request {
    Request::Create { parent: Ino::ROOT, name: Bytes::from_static(name), new: new(Node::File) }
}

fn look_up(name: &'static [u8]) -> Request {
    Request::Lookup { parent: Ino::ROOT, name: Bytes::from_static(name) }
}

async fn make_by(peer: &Peer, name: &'static [u8]) -> Ino {
    let made = peer.ask(1, create(name)).await;
    let Answer::Inode(made) = made else { panic!("{made:?}") };
    made.ino
}

#[test]
fn a_call_that_waits_behind_others_is_carried_out_when_it_comes_again() {
    run(1, |env| async move {
        // One call at a time.
        let limits = Options { budget: 1, ..options() };
        let scene = Scene::with(&env, Arc::new(NaiveFiles::new(&env)), limits).await;
        let silent = Peer::attached(&scene, &scene.visit("silent"), 0).await;
        let cached = make_by(&silent, b"cached").await;
        let (host, session) = (scene.visit("peer"), env.uuid());
        let peer = Peer::new(&scene, &host, 1).await;
        peer.attach(session, false).await;
        assert!(matches!(peer.ask(1, look_up(b"cached")).await, Answer::Inode(_)));
        let start = |peer: &Peer, number, request| {
            let (channel, call) = (peer.channel.clone(), call(number, request));
            env.spawn(async move { channel.call::<_, Reply>(&call, &[]).await })
        };
        // This one waits for the other client, and the next one for this one.
        let change = AttributeChange { mode: Some(0o700), ..AttributeChange::default() };
        let _first = start(&peer, 2, Request::SetAttributes { ino: cached, change });
        env.sleep(Duration::from_millis(1)).await;
        let _second = start(&peer, 3, create(b"made"));
        env.sleep(Duration::from_millis(1)).await;
        let again = Peer::new(&scene, &host, 1).await;
        again.attach(session, true).await;
        peer.ends(&env).await;
        let made = env.timeout(4 * LEASE, again.ask(3, create(b"made"))).await;
        assert!(matches!(made, Some(Answer::Inode(_))), "{made:?}");
    });
}

#[test]
fn what_a_call_has_opened_is_closed_when_its_answer_fails() {
    run(1, |env| async move {
        let limits = Options { commit: Duration::from_secs(1000), ..options() };
        let (scene, faults) = Scene::failing(&env, limits).await;
        let maker = Peer::attached(&scene, &scene.visit("maker"), 1).await;
        let other = Peer::attached(&scene, &scene.visit("other"), 1).await;
        let ino = make_by(&maker, b"f").await;
        assert!(matches!(other.ask(1, look_up(b"f")).await, Answer::Inode(_)));
        let write = Request::Write { ino, at: WriteAt::Offset(0), how: WriteHow::default() };
        let written = maker.ask_for((2, None), write, b"text".to_vec()).await;
        assert!(matches!(written, Answer::Number(_)), "{written:?}");
        // What the other one opens depends on that write.
        faults.iter().for_each(|it| it.fail(Operation::Flush, usize::MAX));
        let open = |delegation| {
            let (handle, caller, flags, late) = (Handle(1), Caller::default(), WRITING, false);
            Request::Open { handle, caller, ino, flags, late, delegation }
        };
        let failed = other.ask(2, open(true)).await;
        assert!(matches!(failed, Answer::Failed(_)), "{failed:?}");
        // A file that another client has open bypasses the cache.
        let opened = maker.ask(3, open(false)).await;
        let Answer::Opened { pages, .. } = opened else { panic!("{opened:?}") };
        assert_ne!(pages, PageCache::Bypass);
    });
}
