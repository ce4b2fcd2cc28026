//! What was sent, by what it was for.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;

/// The purpose of a message that has no name.
const UNNAMED: &str = "other";

/// Messages, and their bytes in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Sent {
    /// Messages.
    pub messages: u64,
    /// Their bytes with heads and payloads, before they are encrypted.
    pub bytes: u64,
}

/// Counts what channels send. The purpose of a message is the name of its variant, unless its sender names another one. Clones
/// count together.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    sent: Arc<Mutex<BTreeMap<&'static str, Sent>>>,
}

impl Traffic {
    /// What was sent so far, by purpose.
    pub fn sent(&self) -> BTreeMap<&'static str, Sent> {
        self.sent.lock().clone()
    }

    /// What was sent so far for one purpose.
    pub fn sent_for(&self, purpose: &str) -> Sent {
        self.sent.lock().get(purpose).copied().unwrap_or_default()
    }

    pub(crate) fn count(&self, purpose: &'static str, bytes: usize) {
        let mut sent = self.sent.lock();
        let sent = sent.entry(purpose).or_default();
        sent.messages += 1;
        sent.bytes += bytes as u64;
    }
}

/// The name of a message's variant.
pub fn name_of<T: Serialize>(message: &T) -> &'static str {
    serde_variant::to_variant_name(message).unwrap_or(UNNAMED)
}
