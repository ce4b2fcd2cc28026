//! Answers that a caller may cache.

use std::ops::Deref;
use std::time::Duration;

use crate::attributes::Attributes;

/// How long a caller may cache an answer; an invalidation ends it earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Validity {
    /// That the name leads to the inode.
    pub entry: Duration,
    /// The attributes.
    pub attributes: Duration,
}

impl Validity {
    /// Until an invalidation, for filesystems that announce all changes through other handles. A day, so that a
    /// lost invalidation does not last for ever.
    pub const UNTIL_CHANGED: Validity = Validity { entry: DAY, attributes: DAY };
    /// Not at all.
    pub const NONE: Validity = Validity { entry: Duration::ZERO, attributes: Duration::ZERO };
}

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Attributes, and how long they may be cached. It reads as the attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The attributes.
    pub attributes: Attributes,
    /// How long they, and the name by which they were asked for, may be cached.
    pub valid: Validity,
}

impl Answer {
    /// Attributes that may be cached until an invalidation.
    pub fn until_changed(attributes: Attributes) -> Answer {
        Answer { attributes, valid: Validity::UNTIL_CHANGED }
    }
}

impl Deref for Answer {
    type Target = Attributes;

    fn deref(&self) -> &Attributes {
        &self.attributes
    }
}

/// The answer to a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The inode of the name.
    Found(Answer),
    /// The directory has no such name, which may be cached for so long.
    Absent(Duration),
}

impl Lookup {
    /// The directory has no such name; valid until an invalidation.
    pub const ABSENT: Lookup = Lookup::Absent(DAY);
}
