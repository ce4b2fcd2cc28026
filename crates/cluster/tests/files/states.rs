//! What a program has come to, state after state, and what another client may find of that.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The bytes of a file; `None` of a directory.
pub(crate) type Content = Option<Arc<Vec<u8>>>;
/// What a directory has.
pub(crate) type State = BTreeMap<String, Content>;

/// The extended attribute that a file may have.
pub(crate) const XATTR: &[u8] = b"user.a";

/// The name in a state of the extended attribute of the file of this name.
pub(crate) fn xattr_of(name: &str) -> String {
    format!("{name} user.a")
}

/// A file has another name, with its extended attribute. One that had that name has the other one then, or is gone.
pub(crate) fn move_xattr(state: &mut State, (from, to): (&str, &str), exchanges: bool) {
    let (moved, there) = (state.remove(&xattr_of(from)), state.remove(&xattr_of(to)));
    moved.into_iter().for_each(|value| drop(state.insert(xattr_of(to), value)));
    let there = there.filter(|_| exchanges);
    there.into_iter().for_each(|value| drop(state.insert(xattr_of(from), value)));
}

/// What a program has done, and what of that it was told to be durable.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The states, one after each change. The last one may not have come about.
    pub(crate) states: Vec<State>,
    /// The state that a sync has covered.
    pub(crate) synced: usize,
    pub(crate) syncs: u64,
}

pub(crate) fn len_of(content: &Content) -> usize {
    content.as_ref().map_or(0, |bytes| bytes.len())
}

/// Whether a state lies between two that follow one another. Where contents are objects, a call that writes bytes is not one change:
/// a crash leaves any part of it.
fn is_between(now: &State, one: &State, next: &State) -> bool {
    let len_is = |bytes: &[u8], of: &Content| bytes.len() == len_of(of);
    let mixed = |name: &String, content: &Content| {
        let (Some(one), Some(next)) = (one.get(name), next.get(name)) else { return false };
        let (Some(bytes), Some(a), Some(b)) = (content, one, next) else { return content == one };
        let is_one = |at: usize, byte: &u8| a.get(at) == Some(byte) || b.get(at) == Some(byte);
        (len_is(bytes, one) || len_is(bytes, next))
            && bytes.iter().enumerate().all(|(at, byte)| is_one(at, byte))
    };
    now.len() == one.len() && now.iter().all(|(name, content)| mixed(name, content))
}

impl History {
    /// The last state that another client may find so.
    pub(crate) fn position_of(&self, now: &State, has_objects: bool) -> Option<usize> {
        let whole = self.states.iter().rposition(|it| it == now);
        let between = || {
            let pairs = self.states.windows(2);
            pairs.enumerate().rev().find(|(_, it)| is_between(now, &it[0], &it[1])).map(|it| it.0)
        };
        whole.or_else(|| has_objects.then(between).flatten())
    }
}
