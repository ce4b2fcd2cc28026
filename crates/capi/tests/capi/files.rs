//! Files, as C programs use them.

use std::path::Path;
use std::process::Command;

use thalweg_net::keys::Access;

use crate::sharing::{Sharing, mkfs, volume_with_files};
use crate::{Process, calls, documented, runtime, volume};

#[test]
fn every_call_on_files_of_a_volume() {
    let home = volume();
    let folder = home.path().join("vol");
    runtime().block_on(mkfs(&folder));
    calls("files", &folder, &[]);
}

#[test]
fn every_call_on_files_of_a_volume_in_place() {
    let home = tempfile::tempdir().unwrap();
    let path = runtime().block_on(volume_with_files(home.path(), "one"));
    calls("files", &path, &[]);
}

#[test]
fn every_call_on_files_that_a_server_shares() {
    let home = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let sharing = runtime.block_on(async {
        let path = volume_with_files(home.path(), "one").await;
        Sharing::begin(&path, &home.path().join("server")).await
    });
    let (token, keys) = (sharing.token("laptop", Access::Write), home.path().join("keys"));
    calls("files", Path::new(&sharing.address), &[&token, keys.to_str().unwrap()]);
    runtime.block_on(sharing.end());
}

/// The program in docs/files.md. On a volume that another process serves it says what to do.
#[test]
fn the_guides_program_appends_to_a_log() {
    let home = volume();
    let folder = home.path().join("vol");
    runtime().block_on(mkfs(&folder));
    let program = documented("docs/files.md", &folder, "return 0;\n");
    let run = || {
        let output = Command::new(&program).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    assert_eq!(run(), (Some(0), "/logs/today has 6 bytes\n".to_owned(), String::new()));
    assert_eq!(run(), (Some(0), "/logs/today has 12 bytes\n".to_owned(), String::new()));
    let _server = Process::serve(&folder, "60000");
    let (code, _, said) = run();
    assert!(code == Some(1) && said.contains("is open in another process"), "{said}");
}
