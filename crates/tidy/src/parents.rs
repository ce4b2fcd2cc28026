//! Parents: items that modules import from the file of a module around them.
//!
//! A parent assembles its children and knows them; what its children share stands in a file of its own.

use crate::modules::Upward;
use crate::ratchet::Measured;

/// For each module, how many imports modules below it have of items in its own file.
pub(crate) fn measure(upward: &Upward) -> Measured {
    let mut measured = Measured::default();
    for (parent, found) in upward {
        for (file, name) in found {
            measured.count(parent, format!("{file}: imports {name} of {parent}"));
        }
    }
    measured
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::modules::references;
    use crate::sources::{Package, Sources};

    #[test]
    fn items_of_a_parents_own_file_count() {
        let files = [
            ("crates/a/src/lib.rs", "mod b; pub struct Root;"),
            (
                "crates/a/src/b.rs",
                "mod c; mod d; mod e { use super::Own; } pub use d::Sibling; pub struct Own;",
            ),
            (
                "crates/a/src/b/c.rs",
                "use super::{Own, Sibling, d::Other}; use crate::b::Own as Again; fn f() { super::Own::new(); }",
            ),
            (
                "crates/a/src/b/d.rs",
                "use crate::Root; pub struct Sibling; #[cfg(test)] mod tests { use crate::b::Own; }",
            ),
        ];
        let parsed = Sources::of(&files).parse().unwrap();
        let package =
            Package { folder: "crates/a".into(), name: "a".into(), dependencies: BTreeSet::new() };
        let (_, upward) = references(&package, &parsed).unwrap();
        assert_eq!(measure(&upward).numbers(), [("a::b", 1)]);
    }
}
