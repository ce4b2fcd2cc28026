//! Tells the links' devices whether they are at the tail or in the body, so that mirrors can let their idle
//! sides rest (Gecko 3.1.4).

use std::sync::Arc;

use thalweg_env::HashMap;
use uuid::Uuid;

use super::format::NO_SEGMENT;
use super::stream::Stream;
use super::{Inner, State};
use crate::device::{DeviceRef, Role};

impl State {
    /// The links that the logs write: of the oldest block that is not yet durable, of the open segment, and
    /// of the reserved one. The last is announced ahead of time, because a resting drive takes a while to
    /// wake.
    pub(super) fn written_links(&self) -> [u16; 6] {
        let link = |segment: u32| self.segments.get(segment).link;
        let links = |stream: &Stream| {
            let open = stream.open();
            let next = if open.next == NO_SEGMENT { open.id } else { open.next };
            [link(stream.oldest_segment()), link(open.id), link(next)]
        };
        let [a, b, c] = links(&self.users);
        let [d, e, f] = self.body.as_ref().map_or([a, b, c], links);
        [a, b, c, d, e, f]
    }

    fn roles(&self) -> Vec<(Uuid, DeviceRef, Role)> {
        let written = self.written_links();
        let role = |link| if written.contains(&(link as u16)) { Role::Tail } else { Role::Body };
        let links = self.segments.links.iter().enumerate();
        links.map(|(number, link)| (link.id, link.device.clone(), role(number))).collect()
    }
}

impl Inner {
    /// Wakes the task below when the roles have changed.
    pub(super) fn check_roles(&self, state: &mut State) {
        let written = state.written_links();
        if std::mem::replace(&mut state.told, written) != written {
            self.role_kick.notify_one();
        }
    }
}

/// Tells each device its role, at first and whenever it changes.
pub(super) async fn run_roles(inner: Arc<Inner>) {
    let mut told: HashMap<Uuid, Role> = HashMap::default();
    loop {
        let roles = inner.state.lock().roles();
        for (id, device, role) in roles {
            if told.insert(id, role) != Some(role) {
                device.set_role(role).await;
            }
        }
        inner.role_kick.notified().await;
    }
}
