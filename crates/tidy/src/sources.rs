//! The files of the workspace, and the packages that they belong to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::TidyError;

/// What is read; everything else at the top of the workspace holds no Rust and no documentation.
const ROOTS: &[&str] = &["README.md", "crates", "docs", "examples", "fuzz"];

/// Texts of the workspace's Rust sources, Markdown pages and manifests, by path. Paths are relative to the
/// workspace and separated by `/`.
pub(crate) struct Sources {
    texts: BTreeMap<String, String>,
}

impl Sources {
    /// Reads the workspace in `root`.
    pub(crate) fn read(root: &Path) -> Result<Self, TidyError> {
        let mut texts = BTreeMap::new();
        for name in ROOTS {
            if root.join(name).exists() {
                collect(root, name, &mut texts)?;
            }
        }
        collect(root, "Cargo.toml", &mut texts)?;
        Ok(Self { texts })
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        Self { texts: files.iter().map(|(path, text)| ((*path).into(), (*text).into())).collect() }
    }

    /// The text of a file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Files whose name ends in `.extension`, with their texts.
    pub(crate) fn with_extension<'a>(
        &'a self,
        extension: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let texts = self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        texts.filter(move |(path, _)| {
            Path::new(path).extension().is_some_and(|found| found == extension)
        })
    }

    /// Parses every Rust source.
    pub(crate) fn parse(&self) -> Result<Parsed, TidyError> {
        let parse = |(path, text): (&str, &str)| match syn::parse_file(text) {
            Ok(file) => Ok((path.to_owned(), file)),
            Err(error) => Err(TidyError::Rust {
                path: path.into(),
                line: error.span().start().line,
                message: error.to_string(),
            }),
        };
        self.with_extension("rs").map(parse).collect()
    }

    /// The workspace's packages, in the order of their folders.
    pub(crate) fn packages(&self) -> Result<Vec<Package>, TidyError> {
        let manifest = self.manifest("Cargo.toml")?;
        let members = manifest.get("workspace").and_then(|workspace| workspace.get("members"));
        let members = members.and_then(toml::Value::as_array);
        let members = members.ok_or_else(|| field("Cargo.toml", "workspace.members", "a list"))?;
        let mut packages = members
            .iter()
            .map(|member| {
                let folder = member.as_str();
                let folder = folder.ok_or_else(|| field("Cargo.toml", "a member", "a string"))?;
                self.package(folder)
            })
            .collect::<Result<Vec<_>, _>>()?;
        packages.sort_by(|a, b| a.folder.cmp(&b.folder));
        Ok(packages)
    }

    fn package(&self, folder: &str) -> Result<Package, TidyError> {
        let path = format!("{folder}/Cargo.toml");
        let manifest = self.manifest(&path)?;
        let name = manifest.get("package").and_then(|package| package.get("name"));
        let name = name.and_then(toml::Value::as_str);
        let name = name.ok_or_else(|| field(&path, "package.name", "a string"))?.to_owned();
        let targets = manifest.get("target").and_then(toml::Value::as_table);
        let targets = targets.into_iter().flat_map(toml::Table::values);
        let tables = std::iter::once(manifest.get("dependencies"))
            .chain(targets.map(|target| target.get("dependencies")));
        let tables = tables.flatten().filter_map(toml::Value::as_table).flatten();
        let dependencies = tables.map(|(key, value)| {
            value.get("package").and_then(toml::Value::as_str).unwrap_or(key).to_owned()
        });
        Ok(Package { dependencies: dependencies.collect(), folder: folder.into(), name })
    }

    fn manifest(&self, path: &str) -> Result<toml::Table, TidyError> {
        let text = self.text(path).unwrap_or_default();
        text.parse().map_err(|error| TidyError::Toml { path: path.into(), source: Box::new(error) })
    }
}

/// Syntax trees by path.
pub(crate) type Parsed = BTreeMap<String, syn::File>;

/// A member of the workspace.
pub(crate) struct Package {
    /// Its folder, such as `crates/store`.
    pub(crate) folder: String,
    /// Its name, such as `thalweg-store`.
    pub(crate) name: String,
    /// Names of the packages that it always or optionally links; neither those of its tests nor those of its
    /// build script.
    pub(crate) dependencies: BTreeSet<String>,
}

impl Package {
    /// The last part of the folder: what the package is called here.
    pub(crate) fn short(&self) -> &str {
        self.folder.rsplit('/').next().unwrap_or(&self.folder)
    }
}

fn field(path: &str, field: &str, expected: &'static str) -> TidyError {
    TidyError::Field { path: path.into(), field: field.into(), expected }
}

/// Reads `name`, and what is below it if it is a folder.
fn collect(root: &Path, name: &str, texts: &mut BTreeMap<String, String>) -> Result<(), TidyError> {
    let path = root.join(name);
    let failed = |source| TidyError::File { path: path.clone(), source };
    if path.is_dir() {
        // Cargo marks a folder of build results with this file.
        if path.join("CACHEDIR.TAG").exists() {
            return Ok(());
        }
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?.file_name();
            let entry = entry.to_string_lossy();
            if !entry.starts_with('.') {
                collect(root, &format!("{name}/{entry}"), texts)?;
            }
        }
    } else if matches!(path.extension().and_then(|e| e.to_str()), Some("rs" | "md" | "toml")) {
        texts.insert(name.into(), fs::read_to_string(&path).map_err(failed)?);
    }
    Ok(())
}
