//! Types whose `impl` blocks are spread over many files: no file shows what such a type is.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use crate::items::is_test;
use crate::lengths::type_name;
use crate::ratchet::Measured;
use crate::sources::Parsed;

/// Where the rule holds.
const FOLDER: &str = "crates/cluster/src/";
/// The files in which a type may have `impl` blocks, those of traits too.
const FILES: usize = 3;

/// Types above the limit, as `FOLDER MODULE: TYPE`, with their numbers of files.
pub(crate) fn measure(parsed: &Parsed) -> Measured {
    let mut found: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (path, file) in parsed {
        let Some(module) = path.strip_prefix(FOLDER) else { continue };
        let module = module.split(['/', '.']).next().unwrap_or(module);
        let mut impls = Impls(BTreeSet::new());
        impls.visit_file(file);
        for name in impls.0 {
            found.entry(format!("{FOLDER}{module}: {name}")).or_default().insert(path);
        }
    }
    let mut measured = Measured::default();
    for (key, files) in found.iter().filter(|(_, files)| files.len() > FILES) {
        let places = files.iter().copied().collect::<Vec<_>>().join(", ");
        measured.number(key, files.len() as u64, format!("{key}: {places}"));
    }
    measured
}

/// The types that a file has `impl` blocks of, outside of tests.
struct Impls(BTreeSet<String>);

impl<'ast> Visit<'ast> for Impls {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_test(&item.attrs) {
            self.0.insert(type_name(&item.self_ty));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::Sources;

    #[test]
    fn a_type_may_have_impls_in_three_files() {
        let file = |name: &str| format!("crates/cluster/src/{name}.rs");
        let names = ["server", "server/a", "server/b", "server/c", "client/a", "client/b"];
        let paths: Vec<String> = names.iter().map(|name| file(name)).collect();
        let text = "struct T; impl T {} impl Clone for &T {} #[cfg(test)] mod tests { impl U {} }";
        let sources = |count: usize| {
            let files: Vec<_> = paths[..count].iter().map(|path| (path.as_str(), text)).collect();
            Sources::of(&files).parse().unwrap()
        };
        assert_eq!(measure(&sources(3)).numbers(), []);
        assert_eq!(measure(&sources(6)).numbers(), [("crates/cluster/src/server: T", 4)]);
    }
}
