//! Tests of `scripts/test-times`, which says where the time of `make test` goes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Prints like `cargo test`: compiling, a unit test that waits for a line of input, a test, doc tests.
const CARGO: &str = "timeout 60 sh -c '\
    echo \"   Compiling a v0.1.0 (/a)\" >&2; \
    echo \"    Finished test profile [optimized] target(s) in 0.1s\" >&2; \
    echo \"     Running unittests src/lib.rs (target/debug/deps/none-1)\" >&2; \
    echo ready; read line; echo \"got $line\"; \
    echo \"     Running tests/t/main.rs (target/debug/deps/none-2)\" >&2; \
    sleep 0.1; \
    echo \"   Doc-tests a\" >&2; \
    exit $0'";

/// A budget file that goes with its test.
struct BudgetFile(PathBuf);

impl BudgetFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("thalweg-{name}-{}", std::process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for BudgetFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn start(budget: &BudgetFile, arguments: &[&str]) -> Child {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test-times");
    let mut command = Command::new(script);
    command.arg("--budget").arg(&budget.0).args(arguments);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("scripts/test-times needs python3")
}

/// Answers the question of [`CARGO`] when it arrives; the exit status and the output.
fn finish(mut child: Child) -> (Option<i32>, String) {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.ends_with("ready\n") && output.read_line(&mut text).unwrap() > 0 {}
    child.stdin.take().unwrap().write_all(b"the answer\n").unwrap();
    output.read_to_string(&mut text).unwrap();
    (child.wait().unwrap().code(), text)
}

fn row<'a>(output: &'a str, part: &str) -> &'a str {
    let ends = |line: &&str| line.split("  <- ").next().is_some_and(|row| row.ends_with(part));
    output.lines().rfind(ends).unwrap_or_else(|| panic!("no row of {part}:\n{output}"))
}

#[test]
fn output_passes_through_as_it_comes_and_the_exit_status_is_kept() {
    let budget = BudgetFile::new("status", "");
    let (status, output) = finish(start(&budget, &[&format!("{CARGO} 101"), "echo another"]));
    assert_eq!(status, Some(101));
    assert!(output.contains("got the answer\n"), "{output}");
    assert!(!output.contains("another"), "{output}");
    assert!(row(&output, "total").contains("no budget"), "{output}");
}

#[test]
fn the_failed_tests_stand_at_the_end_with_what_they_said() {
    let budget = BudgetFile::new("failed", "");
    let cargo = "sh -c '\
        echo \"     Running tests/t/main.rs (target/debug/deps/none-2)\" >&2; \
        echo \"test a::b ... FAILED\"; \
        echo \"test c ... ok\"; \
        echo; echo failures:; echo; \
        echo \"---- a::b stdout ----\"; \
        for i in 1 2 3 4 5 6 7; do echo \"line $i\"; done; \
        echo; echo failures:; echo \"    a::b\"; \
        echo \"     Running tests/u/main.rs (target/debug/deps/none-3)\" >&2; \
        echo \"test a::b ... ok\"; \
        echo \"test d ... FAILED\"; \
        echo \"error: 2 targets failed:\" >&2; \
        exit 101'";
    let output = start(&budget, &[cargo]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(101));
    let output = String::from_utf8(output.stdout).unwrap();
    let (_, end) = output.rsplit_once("2 failed:\n").unwrap_or_else(|| panic!("{output}"));
    let said: String = (1..7).map(|line| format!("      line {line}\n")).collect();
    assert_eq!(
        end,
        format!("  tests/t/main.rs: a::b\n{said}  tests/u/main.rs: d\nerror: 2 targets failed:\n")
    );
}

#[test]
fn times_stand_beside_their_budgets() {
    let text = "# A comment.\n1000 2.5 1.5 2026-01-02 src/lib.rs\n0 - - - tests/t/main.rs\n500 - - - total\n";
    let budget = BudgetFile::new("table", text);
    let (status, output) = finish(start(&budget, &[&format!("{CARGO} 0")]));
    assert_eq!(status, Some(0), "too slow is no failure: {output}");
    assert!(
        row(&output, "src/lib.rs").ends_with("1000      2.5 2026-01-02 src/lib.rs"),
        "{output}"
    );
    assert!(row(&output, "tests/t/main.rs").ends_with("s over budget"), "{output}");
    assert!(row(&output, "doc a").ends_with("no budget"), "{output}");
    let last = output.lines().last().unwrap();
    assert!(
        last.starts_with("3 test binaries: ") && last.ends_with("% of 500 s; 1 over budget"),
        "{last}"
    );
}

#[test]
fn a_recorded_run_keeps_budgets_and_adds_those_that_are_missing() {
    let budget =
        BudgetFile::new("record", "1000 - - - src/lib.rs\n7 3.0 0.5 2026-01-02 tests/other.rs\n");
    let (status, _) = finish(start(&budget, &["--record", &format!("{CARGO} 3")]));
    assert_eq!(status, Some(3));
    assert!(
        fs::read_to_string(&budget.0).unwrap().starts_with("1000 - - - "),
        "a failed run is not recorded"
    );

    let (status, _) = finish(start(&budget, &["--record", &format!("{CARGO} 0")]));
    assert_eq!(status, Some(0));
    let text = fs::read_to_string(&budget.0).unwrap();
    let fields = |part: &str| row(&text, part).split_whitespace().collect::<Vec<_>>();
    assert_eq!(fields("src/lib.rs")[0], "1000");
    assert_ne!(fields("src/lib.rs")[1], "-");
    assert_eq!(fields("tests/other.rs"), ["7", "3.0", "0.5", "2026-01-02", "tests/other.rs"]);
    assert_eq!(fields("doc a")[0], "1");
}

#[test]
fn a_damaged_budget_is_refused_before_anything_runs() {
    let budget = BudgetFile::new("damaged", "ten - - - total\n");
    let output = start(&budget, &["echo ran"]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.ends_with(": line 1 is not `budget measured cores date name`: ten - - - total\n"),
        "{error}"
    );
}

/// What cargo says of a test binary, which is a script here.
fn artifact(folder: &Path, name: &str, script: &str) -> String {
    let executable = folder.join(name);
    fs::write(&executable, format!("#!/bin/sh\n{script}\n")).unwrap();
    let mut mode = fs::metadata(&executable).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    fs::set_permissions(&executable, mode).unwrap();
    serde_json::json!({
        "reason": "compiler-artifact",
        "executable": executable,
        "manifest_path": folder.join("Cargo.toml"),
        "target": { "src_path": std::env::current_dir().unwrap().join(name) },
        "profile": { "test": true },
    })
    .to_string()
}

/// Runs binaries, which are scripts, two at a time: the exit status and the output.
fn run_together(budget: &BudgetFile, binaries: &[(&str, &str)]) -> (Option<i32>, String) {
    let folder = budget.0.with_extension("binaries");
    fs::create_dir_all(&folder).unwrap();
    let said: Vec<_> =
        binaries.iter().map(|(name, script)| artifact(&folder, name, script)).collect();
    let cargo = folder.join("cargo");
    fs::write(&cargo, format!("cat <<'END'\nplain text\n{}\nEND\n", said.join("\n"))).unwrap();
    let command = format!("sh {}", cargo.display());
    let output = start(budget, &["--together", "2", &command]).wait_with_output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn binaries_that_run_together_are_told_apart() {
    let budget =
        BudgetFile::new("together", "9 0.1 0.5 2026-01-02 quick\n9 7 1.9 2026-01-02 slow\n");
    // The slow one computes, and ends when the quick one has run beside it, in the folder of its package.
    let slow =
        "echo nice $(nice); for i in $(seq 100); do [ -e ran ] && exit 0; sleep 0.1; done; exit 1";
    let quick = "touch ran; echo nice $(nice); echo 'test a::b ... FAILED'; exit 3";
    let (status, text) = run_together(&budget, &[("quick", quick), ("slow", slow)]);
    assert_eq!(status, Some(101), "{text}");
    let (begin, end) = text.split_once("1 failed:\n").unwrap_or_else(|| panic!("{text}"));
    assert_eq!(end, "  quick: a::b\nerror: quick ended with 3\n");
    // Which of them is printed first is left open: they end at about the same time.
    assert!(begin.starts_with("plain text\n     Running "), "{text}");
    let niceness = |name: &str| -> u32 {
        let said = begin.split_once(&format!("     Running {name}\nnice ")).expect(&text).1;
        said.lines().next().unwrap().parse().unwrap()
    };
    // This test may run at a low priority itself.
    assert_eq!(niceness("slow"), 19.min(niceness("quick") + 10), "{text}");
    assert!(begin.contains("\ntest a::b") && row(begin, "slow").contains("7.0"), "{text}");
}

#[test]
fn a_campaign_that_takes_more_processor_time_than_it_may_fails() {
    let count = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let rows = "0.001 1 1.5 2026-01-02 greedy\n600 1 1.5 2026-01-02 modest\n\
                0.001 1 0.5 2026-01-02 waiting\n- 0.1 - 2026-01-02 speed\n";
    let budget = BudgetFile::new("processor", rows);
    let (status, text) =
        run_together(&budget, &[("greedy", count), ("modest", count), ("waiting", count)]);
    assert_eq!(status, Some(101), "{text}");
    let errors: Vec<_> = text.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    assert!(errors[0].starts_with("error: greedy took ") && errors[0].contains(" processor "));
    // Without the speed of a machine there is nothing to compare with.
    let budget = BudgetFile::new("no-speed", "0.001 1 1.5 2026-01-02 greedy\n");
    let (status, text) = run_together(&budget, &[("greedy", count)]);
    assert_eq!(status, Some(0), "{text}");
}
