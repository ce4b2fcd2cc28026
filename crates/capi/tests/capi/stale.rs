//! Sessions and old versions, as C programs use them.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use tempfile::TempDir;
use thalweg_env::Env;
use thalweg_store::block::{BLOCK_SIZE, BlocksExt, Lba, Write};
use thalweg_store::pool::{Follows, OpenOptions, Pool};
use uuid::Uuid;

use crate::{Process, calls, documented, runtime, volume_with};

/// A volume that keeps old versions, and has the history of one that was followed.
fn keeping() -> TempDir {
    let home = volume_with(|new| new.settings.keep_versions = Some(1000));
    runtime().block_on(async {
        let (env, folder) = (Env::real(), home.path().join("vol"));
        let pool = Pool::open(&env, &folder, &OpenOptions::default()).await.unwrap();
        pool.chain().begin_history().await.unwrap();
        // An opening keeps no versions from before it.
        pool.transactions()
            .apply(vec![Write::block(Lba(99), Bytes::from(vec![0; BLOCK_SIZE]))])
            .await
            .unwrap();
        pool.close().await.unwrap();
    });
    home
}

#[test]
fn sessions_and_old_versions_in_one_process() {
    let [home, empty] = [keeping(), keeping()];
    let empty = empty.path().join("vol");
    calls("stale", &home.path().join("vol"), &["0", empty.to_str().unwrap()]);
}

#[test]
fn sessions_and_old_versions_through_a_server() {
    let volumes = [keeping(), keeping()];
    let [folder, empty] = volumes.each_ref().map(|home| home.path().join("vol"));
    let _servers = [&folder, &empty].map(|folder| Process::serve(folder, "60000"));
    calls("stale", &folder, &["1", empty.to_str().unwrap()]);
}

#[test]
fn what_a_replica_cannot_give_is_told_apart() {
    let home = volume_with(|new| {
        let (volume, address) = (Uuid::from_u128(7), "nowhere.example:1".to_owned());
        new.follows = Some(Follows { volume, address });
    });
    let folder = home.path().join("vol");
    let _server = Process::serve_as(&folder, "60000", "replica");
    calls("replica", &folder, &[]);
}

/// Runs the program in docs/stale-reads.md; what it prints.
fn run(program: &Path) -> String {
    let output = Command::new(program).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_guides_program_reads_what_its_session_wrote() {
    let home = keeping();
    let folder = home.path().join("vol");
    let after = "if (written == 0 || got.oldest != written || strcmp((char *)block, \"hello\") != 0)\nreturn 1;\n\
                 if (tw_close_snapshot(volume) != -EINVAL)\nreturn 2;\n\
                 tw_session_close(session);\nreturn tw_close(volume);\n";
    let program = documented("docs/stale-reads.md", &folder, after);
    assert_eq!(run(&program), "hello, read-my-writes\n");
    let _server = Process::serve(&folder, "60000");
    assert_eq!(run(&program), "hello, read-my-writes\n");
}
