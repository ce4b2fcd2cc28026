//! The ports of machines: what they have carried, and when they are free.

use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::Time;

/// Bytes of a message beside those of an object.
const HEAD: u64 = 256;

/// The port of a machine, with two directions.
#[derive(Debug, Default)]
pub(super) struct Port(Mutex<Directions>);

#[derive(Debug, Default)]
struct Directions {
    received: u64,
    sent: u64,
    receives_until: Time,
    sends_until: Time,
}

impl Port {
    /// Bytes that it has received and sent.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let directions = self.0.lock();
        (directions.received, directions.sent)
    }
}

/// A message with so many bytes beside its head goes through two ports, behind what these carry; when the last byte is through.
pub(super) fn carry(from: &Port, to: &Port, bytes: u64, bandwidth: Option<u64>, now: Time) -> Time {
    let bytes = bytes + HEAD;
    let takes = bandwidth.map_or(0, |rate| bytes * 1_000_000_000 / rate);
    let takes = Duration::from_nanos(takes);
    // One lock after the other.
    let sent = {
        let mut from = from.0.lock();
        from.sent += bytes;
        from.sends_until = from.sends_until.max(now) + takes;
        from.sends_until
    };
    let mut to = to.0.lock();
    to.received += bytes;
    // The first bytes are received while the last ones are sent.
    to.receives_until = sent.max(to.receives_until + takes);
    to.receives_until
}
