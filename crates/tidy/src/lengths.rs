//! Length of files and functions, in lines.

use syn::visit::{self, Visit};

use crate::ratchet::Measured;
use crate::sources::{Parsed, Sources};

/// Lines of a Rust source.
const FILE: u64 = 500;
/// Lines of the front page.
const README: u64 = 250;
/// Lines of a function, from `fn` to its closing brace.
const FUNCTION: u64 = 70;

/// Files above the limit of their kind.
pub(crate) fn files(sources: &Sources) -> Measured {
    let rust = sources.with_extension("rs").map(|(path, text)| (path, text, FILE));
    let readme = sources.text("README.md").map(|text| ("README.md", text, README));
    let mut measured = Measured::default();
    for (path, text, limit) in rust.chain(readme) {
        let lines = text.lines().count() as u64;
        if lines > limit {
            measured.number(path, lines, format!("{path}: the limit is {limit} lines"));
        }
    }
    measured
}

/// Functions above the limit, as `FILE: TYPE::NAME`. Of several of one name in a file the longest counts.
pub(crate) fn functions(parsed: &Parsed) -> Measured {
    let mut measured = Measured::default();
    for (path, file) in parsed {
        let mut functions = Functions { path, scope: Vec::new(), measured: &mut measured };
        functions.visit_file(file);
    }
    measured
}

struct Functions<'a> {
    path: &'a str,
    /// Names of the modules, types and functions around the place that is visited.
    scope: Vec<String>,
    measured: &'a mut Measured,
}

impl Functions<'_> {
    fn within(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.scope.push(name);
        visit(self);
        self.scope.pop();
    }

    fn function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let first = signature.fn_token.span.start().line;
        let last = body.brace_token.span.close().end().line;
        let lines = (last + 1 - first) as u64;
        if lines > FUNCTION {
            let key = format!("{}: {}", self.path, self.scope.join("::"));
            let place = format!("{}:{first}: the limit is {FUNCTION} lines", self.path);
            self.measured.number(&key, lines, place);
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.within(item.ident.to_string(), |this| visit::visit_item_mod(this, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.within(item.ident.to_string(), |this| visit::visit_item_trait(this, item));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = type_name(&item.self_ty);
        let name = match &item.trait_ {
            Some((of, _)) => format!("<{name} as {}>", last_segment(of)),
            None => name,
        };
        self.within(name, |this| visit::visit_item_impl(this, item));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.within(item.sig.ident.to_string(), |this| {
            this.function(&item.sig, &item.block);
            visit::visit_item_fn(this, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.within(item.sig.ident.to_string(), |this| {
            this.function(&item.sig, &item.block);
            visit::visit_impl_item_fn(this, item);
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.within(item.sig.ident.to_string(), |this| {
            if let Some(body) = &item.default {
                this.function(&item.sig, body);
            }
            visit::visit_trait_item_fn(this, item);
        });
    }
}

/// The last name of a type.
pub(crate) fn type_name(of: &syn::Type) -> String {
    match of {
        syn::Type::Path(path) => last_segment(&path.path),
        syn::Type::Reference(reference) => type_name(&reference.elem),
        _ => "_".into(),
    }
}

fn last_segment(path: &syn::Path) -> String {
    path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(lines: usize) -> String {
        "    step();\n".repeat(lines)
    }

    #[test]
    fn files_above_the_limit_of_their_kind_are_found() {
        let long = "x\n".repeat(251);
        let longer = "//\n".repeat(501);
        let fits = "//\n".repeat(500);
        let sources = Sources::of(&[
            ("README.md", &long),
            ("docs/a.md", &long),
            ("crates/a/src/lib.rs", &fits),
            ("crates/a/src/b.rs", &longer),
        ]);
        assert_eq!(files(&sources).numbers(), [("README.md", 251), ("crates/a/src/b.rs", 501)]);
    }

    #[test]
    fn functions_are_measured_from_fn_to_the_brace() {
        let text = format!(
            "/// A comment.\n#[attribute]\npub fn fits() {{\n{}}}\nasync fn long(\n) {{\n{}}}\n",
            body(68),
            body(68)
        );
        let sources = Sources::of(&[("a.rs", &text)]);
        assert_eq!(functions(&sources.parse().unwrap()).numbers(), [("a.rs: long", 71)]);
    }

    #[test]
    fn functions_are_named_by_what_is_around_them() {
        let long = body(70);
        let text = format!(
            "mod m {{ impl T<u8> {{ fn a() {{\n{long}}} }}\n\
             impl p::Show for &T {{ fn a() {{\n{long}}} }} }}\n\
             trait Show {{ fn a() {{\n{long}}} fn b(); }}\n\
             fn outer() {{ fn inner() {{\n{long}}} }}"
        );
        let sources = Sources::of(&[("a.rs", &text)]);
        let measured = functions(&sources.parse().unwrap());
        let names: Vec<_> = measured.numbers().into_iter().map(|(name, _)| name).collect();
        let expected = [
            "a.rs: Show::a",
            "a.rs: m::<T as Show>::a",
            "a.rs: m::T::a",
            "a.rs: outer",
            "a.rs: outer::inner",
        ];
        assert_eq!(names, expected);
    }
}
