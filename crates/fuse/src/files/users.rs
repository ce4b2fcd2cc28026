//! The users of requests, for filesystems whose server checks what a user may do.
//!
//! The kernel has checked that already, with all groups of the process; a request has one of them. The others are those of
//! the thread in /proc, which waits for the answer.

use std::sync::Arc;
use std::time::Duration;

use fuser::Request;
use parking_lot::Mutex;
use thalweg_env::{Env, HashMap, Time};
use thalweg_fs::handle::{Credentials, MAX_GROUPS};

use super::served::Served;

/// How long the groups of a thread are cached. A thread that changes them changes its user or its group too, but for rare
/// exceptions.
const LIFE: Duration = Duration::from_secs(1);
/// Threads that are cached; when there are more, all are dropped.
const CACHED: usize = 1024;

/// A thread, with its user and group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Thread {
    id: u32,
    uid: u32,
    gid: u32,
}

/// What requests of a thread share, and since when.
type Cached = (Arc<Served>, Time);

/// The users of the threads that have made requests lately.
pub(super) struct Users {
    env: Env,
    cached: Mutex<HashMap<Thread, Cached>>,
}

impl Users {
    pub(super) fn new(env: &Env) -> Users {
        Users { env: env.clone(), cached: Mutex::default() }
    }

    /// The state of requests, with the filesystem for the user of this one.
    pub(super) fn served(&self, all: &Arc<Served>, request: &Request) -> Arc<Served> {
        if !all.filesystem.checks_users() {
            return all.clone();
        }
        let thread = Thread { id: request.pid(), uid: request.uid(), gid: request.gid() };
        let now = self.env.now();
        let is_fresh = |(_, since): &&Cached| now.since(*since) < LIFE;
        if let Some((own, _)) = self.cached.lock().get(&thread).filter(is_fresh) {
            return own.clone();
        }
        let user = Credentials::new(thread.uid, thread.gid, &groups_of(thread));
        let Some(filesystem) = all.filesystem.for_user(&Arc::new(user)) else { return all.clone() };
        let own = Arc::new(all.with(filesystem));
        let mut cached = self.cached.lock();
        if cached.len() >= CACHED {
            cached.clear();
        }
        cached.insert(thread, (own.clone(), now));
        own
    }
}

/// The supplementary groups of a thread; none of one that is gone, or in another namespace. Those of root say nothing: the
/// server knows root as another user.
fn groups_of(thread: Thread) -> Vec<u32> {
    if thread.id == 0 || thread.uid == 0 {
        return Vec::new();
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", thread.id));
    let groups = status.map(|status| groups_in(&status)).unwrap_or_default();
    if groups.len() > MAX_GROUPS {
        tracing::debug!(uid = thread.uid, groups = groups.len(), "a user has too many groups");
    }
    groups
}

/// The groups in a thread's status.
fn groups_in(status: &str) -> Vec<u32> {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.unwrap_or_default().split_whitespace().filter_map(|it| it.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_names_the_groups_of_its_thread() {
        assert_eq!(
            groups_in("Name:\tsh\nGid:\t5\t5\t5\t5\nGroups:\t4 20 1000 \nNStgid:\t7\n"),
            [4, 20, 1000]
        );
        assert!(groups_in("Name:\tsh\nGroups:\t\n").is_empty() && groups_in("").is_empty());
        let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let id = own.lines().find_map(|line| line.strip_prefix("Pid:")).unwrap();
        let thread = Thread { id: id.trim().parse().unwrap(), uid: 1, gid: 1 };
        assert_eq!(groups_of(thread), groups_in(&own));
        assert!(groups_of(Thread { id: 0, ..thread }).is_empty());
    }
}
