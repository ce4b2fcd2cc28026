//! What a session is called, and whose it is. That changes when the mount of a client with a journal moves to another machine.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Visitor;

/// The name of a session, which its client alone knows, and the name of the client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::server) struct Identity {
    pub(in crate::server) id: Uuid,
    pub(in crate::server) client: String,
    /// Of a mount that has moved.
    pub(in crate::server) moved: Option<Moved>,
}

/// The last move of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::server) struct Moved {
    /// The name of the session before.
    pub(in crate::server) from: Uuid,
    /// The client of the other machine has attached it.
    pub(in crate::server) has_arrived: bool,
}

impl Identity {
    pub(in crate::server) fn new(id: Uuid, client: String) -> Identity {
        Identity { id, client, moved: None }
    }

    /// The session after its client has handed it over.
    pub(in crate::server) fn handed_over(&self, to: Uuid) -> Identity {
        let moved = Some(Moved { from: self.id, has_arrived: false });
        Identity { id: to, client: self.client.clone(), moved }
    }

    /// Its client hands it over, and the one that it moves to was not there.
    pub(in crate::server) fn is_on_its_way(&self) -> bool {
        self.moved.is_some_and(|moved| !moved.has_arrived)
    }

    /// The session with this client, which attaches it. The one that a mount moves to may have another name, and the same rights.
    pub(in crate::server) fn attached_by(
        &self,
        own: &Visitor,
        visitor: &Visitor,
    ) -> Option<Identity> {
        let is_same = visitor.name == self.client || self.is_on_its_way();
        let has_rights = Visitor { name: visitor.name.clone(), ..own.clone() } == *visitor;
        let moved = self.moved.map(|moved| Moved { has_arrived: true, ..moved });
        (is_same && has_rights).then(|| Identity { client: visitor.name.clone(), moved, ..*self })
    }
}
