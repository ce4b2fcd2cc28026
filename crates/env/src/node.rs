//! Nodes: groups of tasks that are killed at once.
//!
//! A node stands for a process, or a machine, of a cluster that runs in one test: the process is killed, and
//! every task that it ever started stops where it is, also a detached one, while the other nodes go on.

use std::fmt;
use std::sync::Arc;

use crate::Env;
use crate::group::Group;

/// A group of tasks that is killed at once. Dropping it kills the node.
///
/// A task belongs to the node of the [`Env`] that starts it. Code that runs on a node gets [`Node::env`] and
/// no other, so the tasks that its tasks start belong to the node, too. An object that must survive the node,
/// such as a simulated disk, is made with an environment from outside of it.
pub struct Node {
    env: Env,
    group: Arc<Group>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("tasks", &self.tasks()).finish_non_exhaustive()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Env {
    /// A new node without tasks. A node inside a node is killed with the outer one.
    pub fn node(&self) -> Node {
        let group = Group::new(self.group().cloned());
        Node { env: self.in_group(group.clone()), group }
    }
}

impl Node {
    /// The environment for code on the node: clock and chance as outside, its tasks and its wall clock on this node.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Tasks on the node that have not ended, those of nodes inside of it included.
    pub fn tasks(&self) -> usize {
        self.group.len()
    }

    /// Kills the node: from now on no task of it is polled, and a task that is started on it never runs. A
    /// poll that runs on another thread goes on until it returns. The runtime drops the tasks soon;
    /// [`Node::gone`] waits for that.
    pub fn kill(&self) {
        self.group.kill();
    }

    /// Pauses the node: from now on no task of it is polled. Time goes on, and what peers send arrives. A poll that runs
    /// on another thread goes on until it returns.
    pub fn pause(&self) {
        self.group.pause();
    }

    /// Lets a paused node go on, as if it had not noticed.
    pub fn resume(&self) {
        self.group.resume();
    }

    /// Sets the wall clock of the node forward by so many nanoseconds, or back: that of its machine jumps. It shows no time
    /// before 1970. The other clock, by which tasks wait, goes on as before.
    pub fn shift_wall_clock(&self, nanos: i64) {
        self.group.shift_wall(nanos);
    }

    /// Returns when every task has ended and was dropped. A killed node holds no resource then.
    pub async fn gone(&self) {
        self.group.gone().await;
    }
}
