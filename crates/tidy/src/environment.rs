//! Sources that read environment variables: each with a reason. A switch that was put in to break the code for a moment is found so.

use crate::ratchet::Measured;
use crate::sources::Sources;

/// Files of crates that read a variable, but for their tests' folders.
pub(crate) fn measure(sources: &Sources) -> Measured {
    let mut measured = Measured::default();
    for (path, text) in sources.with_extension("rs").filter(|(path, _)| path.contains("/src/")) {
        for (number, _) in text.lines().enumerate().filter(|(_, line)| line.contains(READS)) {
            measured.exception(path, format!("{path}:{}: reads the environment", number + 1));
        }
    }
    measured
}

/// What such a line has; apart, so that this one does not.
const READS: &str = concat!("env::", "var");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_read_the_environment_are_found() {
        let reads = "fn f() {\n    let _ = std::env::VAR(\"BUG\");\n}\n".replace("VAR", "var");
        let files = [("crates/a/src/b.rs", &*reads), ("crates/a/tests/b.rs", &*reads)];
        let measured = measure(&Sources::of(&files));
        let found: Vec<&str> = measured.places().collect();
        assert_eq!(found, ["crates/a/src/b.rs:2: reads the environment"]);
    }
}
