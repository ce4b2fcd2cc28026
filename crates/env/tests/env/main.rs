//! The environment under the simulator.

mod node;
mod watch;
