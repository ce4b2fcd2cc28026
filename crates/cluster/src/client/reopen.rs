//! Open files of a client that was cut off go on in its next session, if no other client has used them meanwhile.

use bytes::Bytes;
use thalweg_fs::Ino;
use thalweg_net::channel::Channel;
use thalweg_net::traffic::name_of;

use super::connection::Connections;
use super::open_table::Opening;
use super::user::User;
use crate::protocol::{Answer, Call, Reply, Request};

impl Connections {
    /// Opens the suspended files at the server of a new session. A file that is not where it was stays stale.
    pub(super) async fn reopen_files(&self, channel: &Channel) {
        let mut stale = 0;
        while let Some((handle, opening, path)) = self.open_files.next_suspended() {
            let Opening { ino, user, caller, flags } = &opening;
            let found = self.find(channel, user, &path).await;
            let mut is_open = false;
            if found == Some(*ino) {
                let (caller, ino, flags) = (*caller, *ino, *flags);
                let request =
                    Request::Open { handle, caller, ino, flags, late: true, delegation: false };
                let answered = self.call_now(channel, user, request).await;
                is_open = answered.is_some_and(|it| matches!(it.answer, Answer::Opened { .. }));
            }
            stale += usize::from(!is_open);
            if !self.open_files.go_on(handle, is_open) && is_open {
                // It was closed meanwhile.
                let request = Request::Release { ino: *ino, handle };
                self.call_now(channel, user, request).await;
            }
        }
        if stale > 0 {
            tracing::error!(stale, "open files are stale");
        }
    }

    /// What a path leads to.
    async fn find(&self, channel: &Channel, user: &User, path: &[u8]) -> Option<Ino> {
        let mut parent = self.base.session.theirs(Ino::ROOT);
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let request = Request::Lookup { parent, name: Bytes::copy_from_slice(name) };
            let Answer::Inode(found) = self.call_now(channel, user, request).await?.answer else {
                return None;
            };
            parent = found.ino;
        }
        Some(parent)
    }

    /// Makes a call on a connection that programs do not use yet.
    async fn call_now(&self, channel: &Channel, user: &User, request: Request) -> Option<Reply> {
        let base = &self.base;
        let number = base.call_numbers.begin(request.footprint(0).is_once(), 0, None);
        let (oldest, answered) = base.call_numbers.acknowledge();
        let user = user.as_deref().cloned();
        let call =
            Call { number: number.number, oldest, answered, slot: 0, before: None, user, request };
        let learner = base.clone();
        let learn = move |reply: Reply, _: Bytes| {
            if let Answer::Inode(attributes) = &reply.answer {
                let told = (reply.stamp, reply.inode_token);
                learner.cache.learn(attributes, told, reply.grants.attributes);
            }
            reply
        };
        let answering = channel.call_then(name_of(&call.request), &call, &[], learn);
        base.env.timeout(base.options.patience, answering).await?.ok()
    }
}
