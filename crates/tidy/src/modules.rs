//! The modules of a crate, and which of them refer to which. Tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::TidyError;
use crate::items::{attributes, is_test, item_name, path_attribute};
use crate::sources::{Package, Parsed};

/// How many re-exports are followed for one name.
const HOPS: usize = 8;

/// A reference from one child of a module to another one, or from what is in them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    pub(crate) from: String,
    pub(crate) to: String,
}

/// References between siblings, by the path of their parent (`store::chain`), each with the files it is in.
pub(crate) type Edges = BTreeMap<String, BTreeMap<Edge, BTreeSet<String>>>;

/// References of modules to items of a module around them, by the path of that module: each the file, and the name of the item.
pub(crate) type Upward = BTreeMap<String, BTreeSet<(String, String)>>;

/// References between siblings, and upward ones, in the library and the binary of `package`.
pub(crate) fn references(package: &Package, parsed: &Parsed) -> Result<(Edges, Upward), TidyError> {
    let (mut edges, mut upward) = (Edges::new(), Upward::new());
    for root in ["lib.rs", "main.rs"] {
        let path = format!("{}/src/{root}", package.folder);
        if parsed.contains_key(&path) {
            let modules = Modules::load(package.short(), &path, parsed)?;
            modules.edges(&mut edges);
            modules.upward(&mut upward);
        }
    }
    Ok((edges, upward))
}

#[derive(Default)]
struct Module {
    /// Its name and those of the modules around it, from the root, which has none.
    path: Vec<String>,
    file: String,
    parent: usize,
    children: BTreeMap<String, usize>,
    /// Names that `use` brings in, with their paths.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Names of items.
    items: BTreeSet<String>,
    /// All paths in it.
    uses: BTreeSet<Vec<String>>,
}

struct Modules<'a> {
    name: &'a str,
    parsed: &'a Parsed,
    modules: Vec<Module>,
}

impl<'a> Modules<'a> {
    fn load(name: &'a str, root: &str, parsed: &'a Parsed) -> Result<Self, TidyError> {
        let module = Module { file: root.into(), ..Module::default() };
        let mut all = Self { name, parsed, modules: vec![module] };
        let folder = parent_folder(root);
        all.collect(0, &parsed[root].items, &folder)?;
        Ok(all)
    }

    /// Collects `items` of a module. The files of its modules are in `folder`.
    fn collect(
        &mut self,
        at: usize,
        items: &'a [syn::Item],
        folder: &str,
    ) -> Result<(), TidyError> {
        let mut names = Names { module: &mut self.modules[at], modules: Vec::new() };
        for item in items {
            names.visit_item(item);
        }
        for item in names.modules {
            let name = item.ident.to_string();
            let (items, file, below): (&[_], _, _) = match &item.content {
                Some((_, items)) => {
                    (items, self.modules[at].file.clone(), format!("{folder}/{name}"))
                }
                None => {
                    let (file, below) = self.find(at, item, folder)?;
                    (&self.parsed[&file].items, file, below)
                }
            };
            let mut path = self.modules[at].path.clone();
            path.push(name.clone());
            let child = self.modules.len();
            self.modules.push(Module { path, file, parent: at, ..Module::default() });
            self.modules[at].children.insert(name, child);
            self.collect(child, items, &below)?;
        }
        Ok(())
    }

    /// The file of a module, and the folder of its modules' files.
    fn find(
        &self,
        at: usize,
        item: &syn::ItemMod,
        folder: &str,
    ) -> Result<(String, String), TidyError> {
        let declared_in = &self.modules[at].file;
        let name = item.ident.to_string();
        let candidates = match path_attribute(&item.attrs) {
            Some(path) => {
                let file = format!("{}/{path}", parent_folder(declared_in));
                let below = parent_folder(&file);
                vec![(file, below)]
            }
            None => {
                let below = format!("{folder}/{name}");
                vec![(format!("{below}.rs"), below.clone()), (format!("{below}/mod.rs"), below)]
            }
        };
        let found = candidates.into_iter().find(|(file, _)| self.parsed.contains_key(file));
        found.ok_or_else(|| TidyError::Module { path: declared_in.clone(), module: name })
    }

    fn edges(&self, edges: &mut Edges) {
        for (from, module) in self.modules.iter().enumerate() {
            let mut targets = BTreeSet::new();
            for path in &module.uses {
                self.resolve(from, path, 0, &mut targets);
            }
            for target in targets {
                self.add_edge(module, &self.modules[target].path, edges);
            }
        }
    }

    /// References to items that are defined in the file of a module around, and not in another module below that one. The root of a
    /// crate is no such module: it has the types of the whole crate.
    fn upward(&self, upward: &mut Upward) {
        for (from, module) in self.modules.iter().enumerate() {
            for path in &module.uses {
                let Some((around, name)) = self.item_around(from, path) else { continue };
                let mut parent = vec![self.name.to_owned()];
                parent.extend_from_slice(&self.modules[around].path);
                let found = (module.file.clone(), name.to_owned());
                upward.entry(parent.join("::")).or_default().insert(found);
            }
        }
    }

    /// The module around `from`, in a file of its own, and its item, that `path` names.
    fn item_around<'b>(&self, from: usize, path: &'b [String]) -> Option<(usize, &'b str)> {
        let modules =
            path.iter().take_while(|name| ["crate", "super", "self"].contains(&name.as_str()));
        let (keywords, rest) = path.split_at(modules.count());
        let mut at = self.module_of(from, keywords).filter(|_| !keywords.is_empty())?;
        let mut rest = rest.iter();
        loop {
            let name = rest.next()?;
            match self.modules[at].children.get(name) {
                Some(child) => at = *child,
                None => {
                    let (inner, outer) = (&self.modules[from], &self.modules[at]);
                    let is_around = at != 0 && from != at && inner.path.starts_with(&outer.path);
                    let is_apart = inner.file != outer.file;
                    return (is_around && is_apart && outer.items.contains(name))
                        .then_some((at, name));
                }
            }
        }
    }

    fn add_edge(&self, from: &Module, to: &[String], edges: &mut Edges) {
        let common = from.path.iter().zip(to).take_while(|(a, b)| a == b).count();
        let (Some(a), Some(b)) = (from.path.get(common), to.get(common)) else { return };
        let mut parent = vec![self.name.to_owned()];
        parent.extend_from_slice(&to[..common]);
        let edge = Edge { from: a.clone(), to: b.clone() };
        let files = edges.entry(parent.join("::")).or_default().entry(edge).or_default();
        files.insert(from.file.clone());
    }

    /// The modules that `path` refers to when it stands in module `from`: that of the item itself, and one
    /// whose name an enclosing module of `from` imports.
    fn resolve(&self, from: usize, path: &[String], hops: usize, targets: &mut BTreeSet<usize>) {
        let mut at = from;
        let mut rest = path;
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" => at = 0,
                "super" => at = self.modules[at].parent,
                "self" => {}
                _ => break,
            }
            rest = after;
        }
        if rest.len() == path.len() && !self.knows(at, &rest[0]) {
            // A path that begins with another crate, or with a local name.
            return;
        }
        self.follow(from, at, rest, hops, targets);
    }

    fn follow(
        &self,
        from: usize,
        mut at: usize,
        mut path: &[String],
        hops: usize,
        targets: &mut BTreeSet<usize>,
    ) {
        while let Some((name, rest)) = path.split_first() {
            let module = &self.modules[at];
            if let Some(child) = module.children.get(name) {
                (at, path) = (*child, rest);
                continue;
            }
            let encloses = self.modules[from].path.starts_with(&module.path);
            if encloses && hops < HOPS {
                if let Some(import) = module.imports.get(name) {
                    let full: Vec<_> = import.iter().chain(rest).cloned().collect();
                    self.resolve(at, &full, hops + 1, targets);
                } else if !module.items.contains(name) {
                    for glob in &module.globs {
                        let full: Vec<_> = glob.iter().chain(path).cloned().collect();
                        if self.module_of(at, glob).is_some_and(|glob| self.knows(glob, name)) {
                            self.resolve(at, &full, hops + 1, targets);
                        }
                    }
                }
            }
            break;
        }
        targets.insert(at);
    }

    /// The module that `path`, which stands in `from`, names.
    fn module_of(&self, from: usize, path: &[String]) -> Option<usize> {
        let mut at = from;
        for name in path {
            at = match name.as_str() {
                "crate" => 0,
                "super" => self.modules[at].parent,
                "self" => at,
                name => *self.modules[at].children.get(name)?,
            };
        }
        Some(at)
    }

    fn knows(&self, at: usize, name: &str) -> bool {
        let module = &self.modules[at];
        module.children.contains_key(name)
            || module.imports.contains_key(name)
            || module.items.contains(name)
    }
}

fn parent_folder(path: &str) -> String {
    Path::new(path).parent().map(|parent| parent.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Collects names and paths of one module's items; modules in it are put aside.
struct Names<'a, 'm> {
    module: &'m mut Module,
    modules: Vec<&'a syn::ItemMod>,
}

impl Names<'_, '_> {
    fn import(&mut self, prefix: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| {
            let mut path = prefix.to_vec();
            if name != "self" || path.is_empty() {
                path.push(name.to_string());
            }
            path
        };
        match tree {
            syn::UseTree::Path(path) => self.import(&with(&path.ident), &path.tree),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(prefix, tree));
            }
            syn::UseTree::Name(name) => {
                let path = with(&name.ident);
                let name = path.last().cloned().unwrap_or_default();
                self.import_as(name, path);
            }
            syn::UseTree::Rename(rename) => {
                self.import_as(rename.rename.to_string(), with(&rename.ident));
            }
            syn::UseTree::Glob(_) => {
                self.module.uses.insert(prefix.to_vec());
                self.module.globs.push(prefix.to_vec());
            }
        }
    }

    fn import_as(&mut self, name: String, path: Vec<String>) {
        self.module.uses.insert(path.clone());
        self.module.imports.insert(name, path);
    }

    /// Paths in a macro's arguments: names between `::`.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.path(&mut path);
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                other => {
                    self.path(&mut path);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.path(&mut path);
    }

    fn path(&mut self, path: &mut Vec<String>) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.module.uses.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Names<'ast, '_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_test(attributes(item)) {
            return;
        }
        match item {
            syn::Item::Mod(item) => {
                self.modules.push(item);
                return;
            }
            syn::Item::Use(item) => {
                if item.leading_colon.is_none() {
                    self.import(&[], &item.tree);
                }
                return;
            }
            _ => {}
        }
        self.module.items.extend(item_name(item).map(ToString::to_string));
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let mut names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.path(&mut names);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.tokens(item.tokens.clone());
        visit::visit_macro(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::Sources;

    /// References in a crate `a` with these files below `src`, as `PARENT: FROM -> TO`.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (format!("crates/a/src/{path}"), *text)).collect();
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let parsed = Sources::of(&files).parse().unwrap();
        let package =
            Package { folder: "crates/a".into(), name: "a".into(), dependencies: BTreeSet::new() };
        let mut found = Vec::new();
        for (parent, edges) in references(&package, &parsed).unwrap().0 {
            found
                .extend(edges.keys().map(|edge| format!("{parent}: {} -> {}", edge.from, edge.to)));
        }
        found
    }

    #[test]
    fn imports_and_paths_are_references() {
        let found = found(&[
            ("lib.rs", "mod b; mod c; mod d; mod e; mod f;"),
            ("b.rs", "use crate::c::X; use super::{d::{self, Y}};"),
            ("c.rs", "fn f() -> crate::d::Z { super::e::g() }"),
            ("d.rs", "fn f() { assert!(crate::e::yes(), \"{}\", super::f::X); }"),
            ("e.rs", "use std::fmt; use f::X;"),
            ("f.rs", ""),
        ]);
        assert_eq!(
            found,
            ["a: b -> c", "a: b -> d", "a: c -> d", "a: c -> e", "a: d -> e", "a: d -> f"]
        );
    }

    #[test]
    fn references_count_where_the_paths_part() {
        let found = found(&[
            (
                "lib.rs",
                "mod b; mod c { pub mod d { use crate::b::e::X; use super::f::Y; } pub mod f; }",
            ),
            ("b.rs", "pub mod e; pub mod g;"),
            ("b/e.rs", "use super::g::X; use super::Y; use crate::c;"),
            ("b/g/mod.rs", "mod h { use super::super::e; }"),
            ("c/f.rs", ""),
        ]);
        assert_eq!(
            found,
            ["a: b -> c", "a: c -> b", "a::b: e -> g", "a::b: g -> e", "a::c: d -> f"]
        );
    }

    #[test]
    fn what_the_parent_imports_is_followed() {
        let found = found(&[
            ("lib.rs", "mod b; mod c; mod d; use c::X; pub use d::*; struct Y;"),
            ("b.rs", "use super::{X, Y, Z};"),
            ("c.rs", "use crate::W;"),
            ("d.rs", "pub struct Z;"),
        ]);
        assert_eq!(found, ["a: b -> c", "a: b -> d"]);
    }

    #[test]
    fn tests_are_left_out() {
        let found = found(&[
            (
                "lib.rs",
                "mod b; mod c; #[cfg(test)] mod missing; #[cfg(not(test))] mod d { use crate::b; }",
            ),
            ("b.rs", "#[cfg(test)] mod tests { use crate::c; } #[cfg(test)] use crate::c;"),
            (
                "c.rs",
                "#[test] fn f() { crate::b::g() } #[cfg(all(test, unix))] fn g() { crate::b::g() }",
            ),
        ]);
        assert_eq!(found, ["a: d -> b"]);
    }

    #[test]
    fn a_missing_file_is_an_error() {
        let parsed = Sources::of(&[("crates/a/src/lib.rs", "mod b;")]).parse().unwrap();
        let package =
            Package { folder: "crates/a".into(), name: "a".into(), dependencies: BTreeSet::new() };
        let error = references(&package, &parsed).unwrap_err().to_string();
        assert_eq!(error, "crates/a/src/lib.rs: the file of `mod b` is missing");
    }
}
