//! Clock, randomness, tasks and connections: the only way to them.
//!
//! A program that reaches time and chance through [`Env`] alone can be run in virtual time: the
//! simulator pauses tokio's clock, which then jumps to the next event as soon as nothing is
//! runnable, and a run is a function of its seed. Tokio's timers round up to a millisecond, so a
//! simulated environment is scaled: one simulated microsecond is one tokio millisecond.
//!
//! - `env`: the handle, [`Env`];
//! - `time`: points in its time, and how it relates to tokio's; `alarm`: [`Alarm`], a timer for spans below a
//!   millisecond;
//! - `task`: [`Task`], aborted when dropped; `push`: [`Push`], which advances a task from a caller's thread;
//! - `node`: [`Node`], a group of tasks that is killed at once; `group`: its tasks;
//! - `tenure`: how long the holder of something may act, [`Tenure`];
//! - [`connection`]: byte streams between processes: [`Connector`](connection::Connector),
//!   [`Listener`](connection::Listener);
//! - [`process`]: this process and the children that it forks;
//! - [`memory`]: how much memory the machine has left;
//! - [`watch`]: a value that tasks watch for changes;
//! - `blocking`: threads that may block; `hash`: maps and sets with a fixed order.
//!
//! # Lock order
//!
//! A [`Push`]'s `future`, then its `task`; the future that is polled under the first takes any other lock. No
//! other lock is taken under a node's `tasks`.

mod alarm;
mod blocking;
pub mod connection;
mod env;
mod group;
mod hash;
pub mod memory;
mod node;
pub mod process;
mod push;
mod task;
mod tenure;
mod time;
pub mod watch;

pub use rand_xoshiro::Xoshiro256PlusPlus as Rng;

pub use self::alarm::Alarm;
pub use self::blocking::{allow_blocking, may_block, server_threads};
pub use self::env::Env;
pub use self::hash::{FixedState, HashMap, HashSet};
pub use self::node::Node;
pub use self::push::Push;
pub use self::task::Task;
pub use self::tenure::{Tenure, Term};
pub use self::time::Time;
