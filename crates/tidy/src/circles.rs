//! Circles: sibling modules that refer to each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::{Edge, Edges};
use crate::ratchet::Measured;

/// Pairs of siblings that refer to each other, as `PARENT: A <-> B`.
pub(crate) fn pairs(edges: &Edges) -> Measured {
    let mut measured = Measured::default();
    for (parent, edges) in edges {
        for (edge, files) in edges {
            let back = Edge { from: edge.to.clone(), to: edge.from.clone() };
            if let Some(back) = edges.get(&back)
                && edge.from < edge.to
            {
                let key = format!("{parent}: {} <-> {}", edge.from, edge.to);
                for (from, to, files) in
                    [(&edge.from, &edge.to, files), (&edge.to, &edge.from, back)]
                {
                    for file in files {
                        measured.exception(&key, format!("{file}: {from} imports {to}"));
                    }
                }
            }
        }
    }
    measured
}

/// For each parent, how many of its modules are in a circle of any length.
pub(crate) fn knots(edges: &Edges) -> Measured {
    let mut measured = Measured::default();
    for (parent, edges) in edges {
        let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for edge in edges.keys() {
            next.entry(&edge.from).or_default().insert(&edge.to);
        }
        let reached: BTreeMap<_, _> = next.keys().map(|from| (*from, reach(from, &next))).collect();
        for (module, from_it) in &reached {
            if from_it.contains(module) {
                let circle = from_it
                    .iter()
                    .filter(|other| reached.get(*other).is_some_and(|back| back.contains(module)));
                let circle = circle.copied().collect::<Vec<_>>().join(", ");
                measured.count(parent, format!("{parent}::{module}: in a circle of {circle}"));
            }
        }
    }
    measured
}

/// The modules that `from` refers to, directly or not.
fn reach<'a>(from: &'a str, next: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for to in next.get(module).into_iter().flatten() {
            if reached.insert(*to) {
                open.push(to);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(list: &[(&str, &str)]) -> Edges {
        let edge = |(from, to): &(&str, &str)| Edge { from: (*from).into(), to: (*to).into() };
        let files = |from: &str| BTreeSet::from([format!("{from}.rs")]);
        let edges = list.iter().map(|pair| (edge(pair), files(pair.0)));
        Edges::from([("a".into(), edges.collect())])
    }

    #[test]
    fn a_pair_is_found_once_with_both_places() {
        let measured = pairs(&edges(&[("b", "c"), ("c", "b"), ("c", "d")]));
        assert_eq!(measured.keys(), ["a: b <-> c"]);
        let places: Vec<_> = measured.places().collect();
        assert_eq!(places, ["b.rs: b imports c", "c.rs: c imports b"]);
    }

    #[test]
    fn longer_circles_are_counted_by_their_modules() {
        let longer = edges(&[("b", "c"), ("c", "d"), ("d", "b"), ("d", "e"), ("f", "b")]);
        assert!(pairs(&longer).keys().is_empty());
        assert_eq!(knots(&longer).numbers(), [("a", 3)]);
        let places: Vec<_> = knots(&longer).places().map(str::to_owned).collect();
        assert_eq!(places[0], "a::b: in a circle of b, c, d");
        assert!(knots(&edges(&[("b", "c"), ("c", "d")])).keys().is_empty());
    }
}
