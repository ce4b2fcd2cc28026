//! A client that stands still for longer than its lease, and goes on.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Child;

use crate::cluster::Scene;
use crate::files::{text, wait_until};

/// The process of a mount. It is killed when this is dropped.
struct Foreground(Child);

impl Foreground {
    fn signal(&self, signal: i32) {
        // SAFETY: the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.0.id().cast_signed(), signal) }, 0);
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_client_that_stands_still_is_evicted_and_goes_on() {
    let Some(scene) = Scene::with_mounts() else { return };
    let token = scene.token_with("still", &["--path", "/", "--rw", "--squash", "none"]);
    let mut mount = scene.mount_command("still", "/");
    let still = Foreground(mount.args(["--foreground", "--token", &token]).spawn().unwrap());
    let (mine, other) = (scene.home.path("mnt-still"), scene.mount("other", "/", "--rw"));
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    wait_until(|| device(&mine) != device(&scene.home.path(".")));

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
