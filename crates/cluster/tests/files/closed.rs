//! Every kind of request from a client that may not make it: one that may only read, one of another user, and one that is
//! bound to a path. Nothing changes, whatever is answered.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::failure::WireError;
use thalweg_cluster::protocol::{Answer, Request};
use thalweg_cluster::server::Visitor;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{
    AttributeChange, Caller, Cookie, Filesystem, Ino, NewNode, Node, OpenFlags, SetXattr, Timestamp,
};
use thalweg_net::keys::Access;
use thalweg_sim::run;

use crate::access::{place, squashed};
use crate::peer::Peer;
use crate::requests::{HANDLE, every};
use crate::scene::*;

const STALE: Answer = Answer::Failed(WireError::Stale);
const READ_ONLY: Answer = Answer::Failed(WireError::ReadOnly);

/// The attributes of a file or a directory, but for the time when it was read.
async fn describe(files: &dyn Filesystem, ino: Ino) -> String {
    let it = files.attributes(ino).await.unwrap().attributes;
    let mut text = format!(
        "{:o} {} {} {} {} {:?} {:?}",
        it.mode, it.uid, it.gid, it.links, it.size, it.modified, it.changed
    );
    for name in files.xattrs(ino).await.unwrap() {
        write!(text, " {name:?}={:?}", files.xattr(ino, &name).await.unwrap()).unwrap();
    }
    text
}

/// A directory with a file `f`, and their inodes.
struct Place {
    directory: Ino,
    file: Ino,
}

impl Place {
    async fn new(scene: &Scene, mode: u16) -> Place {
        let node = |node, mode| NewNode { node, mode, umask: 0, uid: 0, gid: 0 };
        let files = &*scene.files;
        let directory = place(files, Ino::ROOT, "outside", node(Node::Directory, 0o755)).await;
        place(files, Ino::ROOT, "inside", node(Node::Directory, 0o777)).await;
        let file = place(files, directory, "f", node(Node::File, mode)).await;
        put(files, file, "secret content").await.unwrap();
        let value = Bytes::from_static(b"value");
        files.set_xattr(file, b"user.x", value, SetXattr::Any).await.unwrap();
        files.sync_all().await.unwrap();
        Place { directory, file }
    }

    /// Names, attributes and bytes.
    async fn dump(&self, files: &dyn Filesystem) -> String {
        let entries = files.read_directory(self.directory, Cookie::START, 99, false).await.unwrap();
        let names: Vec<_> = entries.into_iter().map(|entry| (entry.name, entry.ino)).collect();
        let (directory, file) =
            (describe(files, self.directory).await, describe(files, self.file).await);
        format!("{names:?}\n{directory}\n{file}\n{}", text(files, self.file).await)
    }

    fn payload(&self, request: &Request) -> Vec<u8> {
        let change = AttributeChange { mode: Some(0o777), ..AttributeChange::default() };
        let kind = MutationKind::SetAttributes { ino: self.file, change };
        match request {
            Request::Batch { .. } => {
                postcard::to_allocvec(&vec![Mutation { time: Timestamp::of_nanos(1), kind }])
                    .unwrap()
            }
            Request::Write { .. } | Request::SetXattr { .. } => b"overwritten".to_vec(),
            _ => Vec::new(),
        }
    }

    /// Sends each request over a connection and in a session of its own, after the client has looked at the names and opened
    /// the file, as far as it may. The answers that came.
    async fn send(&self, scene: &Scene, visitor: Visitor) -> Vec<(Request, Option<Answer>)> {
        let before = self.dump(&*scene.files).await;
        let mut answers = Vec::new();
        for request in every(self.directory, self.file) {
            let peer = Peer::attached(scene, &scene.admit(visitor.clone()), 1).await;
            peer.ask(1, lookup(Ino::ROOT, b"outside")).await;
            peer.ask(2, lookup(self.directory, b"f")).await;
            let (ino, caller) = (self.file, Caller::default());
            let flags = OpenFlags { read: true, ..OpenFlags::default() };
            let (handle, late, delegation) = (HANDLE, false, false);
            peer.ask(3, Request::Open { handle, caller, ino, flags, late, delegation }).await;
            // Those that are about the connection end it, or are not answered.
            let asking = peer.try_ask_with((10, None), request.clone(), self.payload(&request));
            let answer = scene.env.timeout(Duration::from_secs(1), asking).await;
            scene.service.evict(&visitor.name);
            assert_eq!(self.dump(&*scene.files).await, before, "{request:?}: {answer:?}");
            answers.push((request, answer.and_then(Result::ok)));
        }
        answers
    }
}

fn lookup(parent: Ino, name: &'static [u8]) -> Request {
    Request::Lookup { parent, name: Bytes::from_static(name) }
}

#[test]
fn a_client_that_may_only_read_changes_nothing() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let place = Place::new(&scene, 0o666).await;
        let visitor = Visit { path: "/", access: Access::Read }.of("reader");
        for (request, answer) in place.send(&scene, visitor).await {
            if request.footprint(0).writes {
                assert_eq!(answer, Some(READ_ONLY), "{request:?}");
            }
        }
    });
}

#[test]
fn a_squashed_user_gets_nothing_of_what_is_another_users() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let place = Place::new(&scene, 0o600).await;
        let answers = place.send(&scene, squashed("guest")).await;
        for (request, answer) in answers {
            let is_denied =
                matches!(answer, Some(Answer::Failed(WireError::Denied | WireError::NotPermitted)));
            match &request {
                Request::Batch { .. }
                | Request::SetAttributes { .. }
                | Request::Create { .. }
                | Request::Link { .. }
                | Request::Unlink { .. }
                | Request::Rename { .. }
                | Request::Read { .. }
                | Request::Write { .. }
                | Request::Allocate { .. }
                | Request::Seek { .. }
                | Request::Copy { .. }
                | Request::Xattr { .. }
                | Request::SetXattr { .. }
                | Request::RemoveXattr { .. }
                | Request::Open { .. } => assert!(is_denied, "{request:?}: {answer:?}"),
                // It has opened nothing.
                Request::Flush { .. } | Request::Release { .. } | Request::Lock { .. } => {
                    assert_eq!(answer, Some(STALE), "{request:?}");
                }
                _ => {}
            }
        }
    });
}

#[test]
fn a_client_of_a_path_reaches_nothing_outside() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let place = Place::new(&scene, 0o666).await;
        let visitor = Visit { path: "/inside", access: Access::Write }.of("bound");
        for (request, answer) in place.send(&scene, visitor).await {
            if !request.footprint(0).inodes.is_empty() {
                assert_eq!(answer, Some(STALE), "{request:?}");
            }
        }
    });
}
