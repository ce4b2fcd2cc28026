//! Layers: which crate may depend on which, and inside `store` which module may import which.

use crate::modules::Edges;
use crate::ratchet::Measured;
use crate::sources::Package;

/// The product's crates by their folders, lowest layer first. A crate depends on lower layers only, so the adapters,
/// which share one, do not depend on each other.
const CRATES: &[&[&str]] = &[
    &["env"],
    &["net", "store"],
    &["fs"],
    &["ipc", "rados"],
    &["cluster", "replica"],
    &["client"],
    &["nbd", "fuse", "capi", "python"],
    &["cli"],
];

/// Crates that test and measure. No crate of the product depends on them; `sim` stands below the adapters, the
/// others below the binary.
const TESTING: &[&str] = &["bench", "sim"];

/// Modules of `store`, lowest first. A module imports only what stands in a line before its own. In the first two lines
/// are tools without a layer of their own, those that know no other module and those for devices and blocks.
const STORE: &[&[&str]] = &[
    &["checksum", "damage", "gate", "latency", "lock", "refcounts"],
    &["device"],
    &["block"],
    &["copies", "rate"],
    &["journal"],
    &["chain", "inplace"],
    &["stale"],
    &["txn"],
    &["tree"],
    &["volume"],
    &["pool"],
    &["open"],
];

/// Modules of `store` that know a block store by its contract alone, whichever it is.
const ON_THE_CONTRACT: &[&str] = &["stale", "tree", "txn", "volume"];
/// What those do not see.
const BEHIND_THE_CONTRACT: &[&str] = &["chain", "inplace", "journal"];

const NO_LAYER: &str = "has no layer yet: give it one in crates/tidy/src/layers.rs";

/// Dependencies against the order of the crates, as `CRATE -> DEPENDENCY`.
pub(crate) fn crates(packages: &[Package]) -> Measured {
    let mut measured = Measured::default();
    for package in packages {
        let dependencies =
            packages.iter().filter(|other| package.dependencies.contains(&other.name));
        for dependency in dependencies {
            if let Err(rule) = may_depend(&package.folder, &dependency.folder) {
                let key = format!("{} -> {}", package.short(), dependency.short());
                measured.exception(&key, format!("{}/Cargo.toml: {rule}", package.folder));
            }
        }
    }
    measured
}

/// Whether the package in folder `from` may depend on that in `to`; else the rule that forbids it.
fn may_depend(from: &str, to: &str) -> Result<(), String> {
    let layer = |name| CRATES.iter().position(|layer| layer.contains(&name));
    let Some(to) = to.strip_prefix("crates/") else {
        return match from {
            "crates/bench" => Ok(()),
            _ => Err(format!("only bench depends on {to}")),
        };
    };
    let from = match from.strip_prefix("crates/") {
        Some(from) if TESTING.contains(&from) => {
            return match layer(to) {
                _ if from == "bench" && to == "sim" => Ok(()),
                Some(layer) if layer < CRATES.len() - if from == "sim" { 2 } else { 1 } => Ok(()),
                _ => Err(format!("{to} does not stand below {from}")),
            };
        }
        Some(from) => from,
        // An example uses the product like any program outside of the workspace.
        None => {
            return match layer(to) {
                Some(_) => Ok(()),
                None => Err(format!("{to} is no part of the product")),
            };
        }
    };
    match (layer(from), layer(to)) {
        _ if TESTING.contains(&to) => {
            Err(format!("{to} tests and measures; the product does without"))
        }
        (None, _) => Err(format!("{from} {NO_LAYER}")),
        (_, None) => Err(format!("{to} {NO_LAYER}")),
        (Some(above), Some(below)) if above > below => Ok(()),
        _ => Err(format!("{to} does not stand below {from}")),
    }
}

/// Imports against the order of the modules of `store`, as `MODULE -> MODULE`.
pub(crate) fn store(edges: &Edges) -> Measured {
    let layer = |name: &str| STORE.iter().position(|layer| layer.contains(&name));
    let mut measured = Measured::default();
    for (edge, files) in edges.get("store").into_iter().flatten() {
        let (from, to) = (edge.from.as_str(), edge.to.as_str());
        let rule = match (layer(from), layer(to)) {
            _ if ON_THE_CONTRACT.contains(&from) && BEHIND_THE_CONTRACT.contains(&to) => {
                format!("{from} knows block stores by the contract in `block` alone")
            }
            (Some(above), Some(below)) if above > below => continue,
            (Some(_), Some(_)) => format!("{to} does not stand below {from}"),
            (None, _) => format!("{from} {NO_LAYER}"),
            (_, None) => format!("{to} {NO_LAYER}"),
        };
        for file in files {
            measured.exception(&format!("{from} -> {to}"), format!("{file}: {rule}"));
        }
    }
    measured
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::modules::Edge;

    fn found(dependencies: &[(&str, &[&str])]) -> Vec<String> {
        let package = |(folder, of): &(&str, &[&str])| Package {
            folder: (*folder).into(),
            name: (*folder).into(),
            dependencies: of.iter().map(|name| (*name).into()).collect(),
        };
        let packages: Vec<_> = dependencies.iter().map(package).collect();
        crates(&packages).keys().into_iter().map(Into::into).collect()
    }

    #[test]
    fn crates_depend_on_lower_layers() {
        let right: &[(&str, &[&str])] = &[
            ("crates/store", &["bytes"]),
            ("crates/fs", &["crates/store"]),
            ("crates/fuse", &["crates/fs", "crates/store"]),
            ("crates/nbd", &["crates/store"]),
            ("crates/cli", &["crates/fuse", "crates/nbd"]),
            ("crates/sim", &["crates/store", "crates/fs"]),
            ("crates/bench", &["crates/sim", "crates/nbd", "examples/e"]),
            ("examples/e", &["crates/store"]),
        ];
        assert_eq!(found(right), Vec::<String>::new());
        let wrong: &[(&str, &[&str])] = &[
            ("crates/store", &["crates/fs"]),
            ("crates/fs", &["crates/sim", "examples/e"]),
            ("crates/fuse", &["crates/nbd"]),
            ("crates/nbd", &["crates/cli"]),
            ("crates/cli", &["crates/bench"]),
            ("crates/sim", &["crates/nbd", "crates/bench"]),
            ("crates/bench", &["crates/cli"]),
            ("crates/new", &["crates/store"]),
            ("crates/env", &["crates/new"]),
            ("examples/e", &["crates/sim"]),
        ];
        let expected: BTreeSet<_> = wrong
            .iter()
            .flat_map(|(from, all)| all.iter().map(move |to| (short(from), short(to))))
            .map(|(from, to)| format!("{from} -> {to}"))
            .collect();
        assert_eq!(found(wrong), expected.into_iter().collect::<Vec<_>>());
    }

    fn short(folder: &str) -> &str {
        folder.rsplit('/').next().unwrap()
    }

    #[test]
    fn modules_of_the_store_import_lower_ones() {
        let edge = |(from, to): &(&str, &str)| {
            (Edge { from: (*from).into(), to: (*to).into() }, BTreeSet::from(["x.rs".to_owned()]))
        };
        let edges = |list: &[(&str, &str)]| {
            Edges::from([("store".to_owned(), list.iter().map(edge).collect())])
        };
        let right =
            [("chain", "device"), ("pool", "chain"), ("txn", "block"), ("inplace", "journal")];
        assert!(store(&edges(&right)).keys().is_empty());
        let wrong = [
            ("chain", "inplace"),
            ("chain", "new"),
            ("device", "chain"),
            ("new", "chain"),
            ("txn", "chain"),
        ];
        let expected =
            ["chain -> inplace", "chain -> new", "device -> chain", "new -> chain", "txn -> chain"];
        assert_eq!(store(&edges(&wrong)).keys(), expected);
    }
}
