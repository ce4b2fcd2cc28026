//! An object of the simulated cluster, and the changes of it.

use std::collections::BTreeMap;

use bytes::Bytes;
use thalweg_rados::ObjectError;
use thalweg_rados::object::{Change, Comparison, LockHolder, Step};

use crate::content::Content;

/// A lock that is held.
#[derive(Clone, Debug, Default)]
pub(super) struct Lock {
    /// Whether its holders share it; else there is one.
    pub(super) shared: bool,
    pub(super) holders: Vec<LockHolder>,
}

/// An object.
#[derive(Clone, Debug, Default)]
pub(super) struct Object {
    content: Content,
    size: u64,
    attributes: BTreeMap<&'static str, Bytes>,
    /// Locks by name.
    pub(super) locks: BTreeMap<String, Lock>,
}

impl Object {
    /// Its size in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// At most `len` bytes at `offset`.
    pub(super) fn read(&self, offset: u64, len: usize) -> Bytes {
        let present = self.size.saturating_sub(offset).min(len as u64);
        self.content.read(offset, present as usize)
    }

    /// An attribute.
    pub(super) fn attribute(&self, attribute: &str) -> Option<Bytes> {
        self.attributes.get(attribute).cloned()
    }

    fn write(&mut self, offset: u64, data: &[Bytes]) {
        self.content.write_all(offset, data);
        let end = offset + data.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        self.size = self.size.max(end);
    }

    fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.content.zero(size, self.size - size);
        }
        self.size = size;
    }
}

/// The object after `change` by `client`; `None` when it is removed.
pub(super) fn changed(
    path: &str,
    object: Option<&Object>,
    change: &Change,
    client: &str,
) -> Result<Option<Object>, ObjectError> {
    let mut next = object.cloned();
    for step in change.steps() {
        if is_guard(step) {
            guard(path, object, step, client)?;
        }
        match (step, next.as_mut()) {
            (Step::CreateNew | Step::SetAttribute { .. }, _)
            | (Step::Write { .. } | Step::Replace { .. }, _) => {
                apply(next.get_or_insert_default(), step);
            }
            (Step::Remove, None) => {
                return Err(ObjectError::NotFound { object: path.to_owned() });
            }
            (Step::Remove, Some(_)) => next = None,
            (step, Some(object)) => apply(object, step),
            (_, None) => {}
        }
    }
    Ok(next)
}

fn is_guard(step: &Step) -> bool {
    use Step::{AssertExists, AssertLocked, Compare, CreateNew};
    matches!(step, CreateNew | AssertExists | Compare { .. } | AssertLocked { .. })
}

/// Checks a guard on the object as it is before the change.
fn guard(
    path: &str,
    object: Option<&Object>,
    step: &Step,
    client: &str,
) -> Result<(), ObjectError> {
    let path = || path.to_owned();
    let present = object.ok_or_else(|| ObjectError::NotFound { object: path() });
    let holds = match step {
        Step::CreateNew => match object {
            Some(_) => return Err(ObjectError::Exists { object: path() }),
            None => true,
        },
        Step::AssertExists => present.map(|_| true)?,
        Step::Compare { attribute, comparison, value } => {
            let found = present?.attributes.get(attribute);
            let found = found.map_or(&[][..], |found| &found[..]);
            match comparison {
                Comparison::Equal => value[..] == *found,
                Comparison::AtLeast => value[..] >= *found,
            }
        }
        Step::AssertLocked { lock, cookie } => {
            let lock = present?.locks.get(lock).filter(|lock| !lock.shared);
            lock.is_some_and(|lock| {
                lock.holders.iter().any(|it| it.client == client && it.cookie == *cookie)
            })
        }
        _ => true,
    };
    match holds {
        true => Ok(()),
        false => Err(ObjectError::Conflict { object: path() }),
    }
}

fn apply(object: &mut Object, step: &Step) {
    match step {
        Step::SetAttribute { attribute, value } => {
            object.attributes.insert(attribute, value.clone());
        }
        Step::Write { offset, data } => object.write(*offset, data),
        Step::Replace { data } => {
            object.truncate(0);
            object.write(0, std::slice::from_ref(data));
        }
        Step::Zero { offset, len } => {
            let end = (offset + len).min(object.size);
            object.content.zero(*offset, end.saturating_sub(*offset));
        }
        Step::Truncate { size } => object.truncate(*size),
        _ => {}
    }
}

/// The ranges that a change writes, as (offset, length).
pub(super) fn written(change: &Change) -> Vec<(u64, u64)> {
    let ranges = change.steps().iter().filter_map(|step| match step {
        Step::Write { offset, data } => {
            Some((*offset, data.iter().map(|bytes| bytes.len() as u64).sum()))
        }
        Step::Replace { data } => Some((0, data.len() as u64)),
        _ => None,
    });
    ranges.collect()
}
