//! Lock order: a crate with more than one lock says once in which order they are taken.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};

use crate::items::is_test;
use crate::ratchet::Measured;
use crate::sources::{Package, Parsed, Sources};

/// Types that are locks.
const LOCKS: &[&str] = &["Mutex", "RwLock"];
/// The heading that the order stands under, in a doc comment.
const HEADING: &str = "# Lock order";

/// Crates that have more than one lock and do not have the heading exactly once.
pub(crate) fn measure(sources: &Sources, parsed: &Parsed, packages: &[Package]) -> Measured {
    let mut measured = Measured::default();
    for package in packages {
        let folder = format!("{}/src/", package.folder);
        let mut locks = Locks::default();
        for (path, file) in parsed.iter().filter(|(path, _)| path.starts_with(&folder)) {
            locks.path.clone_from(path);
            locks.visit_file(file);
        }
        let texts = sources.with_extension("rs").filter(|(path, _)| path.starts_with(&folder));
        let headings: usize = texts.map(|(_, text)| headings(text)).sum();
        if locks.found.len() > 1 && headings != 1 {
            let key = &package.folder;
            let about = format!("{key}: {} locks, `{HEADING}` {headings} times", locks.found.len());
            measured.exception(key, about);
            locks.found.into_iter().for_each(|place| measured.exception(key, place));
        }
    }
    measured
}

fn headings(text: &str) -> usize {
    let heading = |line: &&str| {
        let line = line.trim();
        let line = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
        line.is_some_and(|line| line.trim() == HEADING)
    };
    text.lines().filter(heading).count()
}

/// Collects fields and statics whose type has a lock in it.
#[derive(Default)]
struct Locks {
    path: String,
    found: BTreeSet<String>,
}

impl Locks {
    fn lock(&mut self, name: &str, of: &syn::Type) {
        let mut finder = HasLock(false);
        finder.visit_type(of);
        if finder.0 {
            self.found.insert(format!("{}: {name}", self.path));
        }
    }
}

impl<'ast> Visit<'ast> for Locks {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        for (index, field) in item.fields.iter().enumerate() {
            let name = field.ident.as_ref().map_or(index.to_string(), ToString::to_string);
            self.lock(&format!("{}.{name}", item.ident), &field.ty);
        }
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.lock(&item.ident.to_string(), &item.ty);
    }
}

struct HasLock(bool);

impl<'ast> Visit<'ast> for HasLock {
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        self.0 |= LOCKS.iter().any(|lock| segment.ident == lock);
        visit::visit_path_segment(self, segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "struct A { a: Arc<Mutex<u8>>, b: u8 } static B: std::sync::RwLock<u8> = C;";

    fn found(files: &[(&str, &str)]) -> usize {
        let sources = Sources::of(files);
        let package =
            Package { folder: "crates/a".into(), name: "a".into(), dependencies: BTreeSet::new() };
        measure(&sources, &sources.parse().unwrap(), &[package]).keys().len()
    }

    #[test]
    fn two_locks_need_their_order_once() {
        let ordered = format!("//! # Lock order\n//! A, then B.\n{TWO}");
        let twice = format!("//! # Lock order\n//!\n//! # Lock order\n{TWO}");
        assert_eq!(found(&[("crates/a/src/lib.rs", TWO)]), 1);
        assert_eq!(found(&[("crates/a/src/lib.rs", &ordered)]), 0);
        assert_eq!(found(&[("crates/a/src/lib.rs", &twice)]), 1);
        let one = "struct A { a: Mutex<u8> }";
        assert_eq!(found(&[("crates/a/src/lib.rs", one)]), 0);
        assert_eq!(found(&[("crates/a/src/lib.rs", one), ("crates/a/src/b.rs", one)]), 1);
    }

    #[test]
    fn guards_and_tests_have_no_order() {
        let text = "struct A<'a> { a: MutexGuard<'a, u8>, b: Mutex<u8> } \
                    #[cfg(test)] mod tests { struct A { a: Mutex<u8> } }";
        assert_eq!(found(&[("crates/a/src/lib.rs", text)]), 0);
        assert_eq!(found(&[("crates/a/src/lib.rs", ""), ("crates/a/tests/t.rs", TWO)]), 0);
    }
}
