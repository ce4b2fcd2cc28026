//! A client that stands still for longer than its lease, and goes on.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::cluster::Scene;
use crate::cluster_journal::{Foreground, first_mount};
use crate::files::{text, wait_until};
use crate::run::{good, json, thalweg};

#[test]
fn a_client_that_stands_still_is_evicted_and_goes_on() {
    let Some(scene) = Scene::with_mounts() else { return };
    let token = scene.token_with("still", &["--path", "/", "--rw", "--squash", "none"]);
    let mut mount = scene.mount_command("still", "/");
    let still = Foreground::start(&scene.home, mount.args(["--token", &token]), "still");
    let (mine, other) = (scene.home.path("mnt-still"), scene.mount("other", "/", "--rw"));

    let file = File::create(mine.join("file")).unwrap();
    file.write_all_at(b"durable", 0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(b"missing", 0).unwrap();
    // No program can be started meanwhile: it would close the file first, which waits for that client.
    still.signal(libc::SIGSTOP);
    // The file is that client's own: this waits until the server has given the client up.
    let seen = fs::read_to_string(other.join("file"));
    let wrote = fs::write(other.join("file"), "later");
    still.signal(libc::SIGCONT);
    // On a busy machine its change may have come to the server before it stood still.
    let seen = seen.unwrap();
    assert!(["durable", "missing"].contains(&seen.as_str()), "{seen}");
    wrote.unwrap();
    assert_eq!(scene.status()["evictions"], 1);

    let lost = file.sync_all().unwrap_err().raw_os_error();
    assert!(matches!(lost, Some(libc::EIO | libc::ESTALE)), "{lost:?}");
    assert!(file.write_all_at(b"late", 0).is_err(), "its handle is stale");
    assert_eq!(
        (text(&mine.join("file")), text(&other.join("file"))),
        ("later".into(), "later".into())
    );
    fs::write(mine.join("new"), "goes on").unwrap();
    assert_eq!(text(&other.join("new")), "goes on");
    drop(file);
    for name in ["still", "other"] {
        let output = scene.umount(name, &[]);
        assert!(output.status.success(), "{output:?}");
    }
}

/// With a journal it writes back what no other client has used, makes copies of the rest, and goes on with the journal.
#[test]
fn a_client_with_a_journal_that_stood_still_goes_on_with_it() {
    let Some(scene) = Scene::with_mounts() else { return };
    let (still, _journal, mine) = first_mount(&scene);
    let other = scene.mount("other", "/", "--rw");
    let put = |name: &str, what: &str| {
        let file = File::create(mine.join(name)).unwrap();
        file.write_all_at(what.as_bytes(), 0).unwrap();
        file.sync_all().unwrap();
    };
    // After a few names the directory is the client's own.
    let shown = scene.home.path("mnt-one").display().to_string();
    let pending = || json(&mut thalweg(["cluster", "pending", "--json", &shown]));
    let mut made = String::new();
    // On a busy machine the changes may come to the server before the client stands still.
    let stands_still = (0..20).any(|attempt| {
        ["apart", "second", "third", "read"].iter().for_each(|name| put(name, "before"));
        good(thalweg(["cluster", "drain"]).arg(&shown));
        made = format!("new{attempt}");
        ["apart", "read", &made].iter().for_each(|name| put(name, "after"));
        // The directory changes, too.
        pending()["pending"]["files"] == 4
    });
    assert!(stands_still, "{}", pending());
    still.signal(libc::SIGSTOP);
    let seen = fs::read_to_string(other.join("d/read"));
    still.signal(libc::SIGCONT);
    assert_eq!(seen.unwrap(), "before");
    let sets = || json(&mut thalweg(["cluster", "conflicts", "list", "--json", &shown]));
    wait_until(|| sets().as_array().is_some_and(|sets| !sets.is_empty()));
    let sets = sets();
    let entries = sets[0]["entries"].as_array().unwrap();
    let paths: Vec<_> = entries.iter().map(|it| it["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/d/read".to_owned(), format!("/d/{made}")], "{sets}");
    assert!(sets[0]["why"].as_str().unwrap().contains("another client"), "{sets}");
    assert_eq!(
        (text(&other.join("d/apart")), text(&mine.join("read"))),
        ("after".into(), "before".into())
    );
    put("later", "in the journal");
    let pending = pending();
    assert!(pending["pending"]["journal"]["session"].is_string(), "{pending}");
    assert!(scene.umount("one", &[]).status.success());
    assert_eq!(text(&other.join("d/later")), "in the journal");
}
