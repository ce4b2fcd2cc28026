//! Whether an inode was changed can be told by the time of its last change.

use bytes::Bytes;
use thalweg_fs::{Allocation, AttributeChange, Filesystem, Ino, Rename, SetXattr, Timestamp};
use thalweg_sim::run;

use crate::support::*;

/// Whether an inode's last change is later than the one noted; notes it.
async fn is_later(fs: &dyn Filesystem, ino: Ino, noted: &mut Timestamp) -> bool {
    let before = std::mem::replace(noted, attributes(fs, ino).await.changed);
    *noted > before
}

#[test]
fn each_change_of_an_inode_is_later_than_the_one_before_while_the_clock_stands_still() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let since = env.now();
        let file = create(&fs, ROOT, "file").await;
        let dir = mkdir(&fs, ROOT, "dir").await;
        let [mut of_file, mut of_root, mut of_dir] = [Timestamp::default(); 3];
        macro_rules! changes {
            ($call:expr, $file:expr, $root:expr, $dir:expr) => {
                $call.await.unwrap();
                let later = [
                    is_later(&fs, file, &mut of_file).await,
                    is_later(&fs, ROOT, &mut of_root).await,
                    is_later(&fs, dir, &mut of_dir).await,
                ];
                assert_eq!(later, [$file, $root, $dir], "{}", stringify!($call));
            };
        }
        for (ino, noted) in [(file, &mut of_file), (ROOT, &mut of_root), (dir, &mut of_dir)] {
            is_later(&fs, ino, noted).await;
        }
        let mode = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
        let size = AttributeChange { size: Some(3), ..AttributeChange::default() };
        let value = || Bytes::from_static(b"1");
        for _ in 0..3 {
            changes!(fs.read(file, 0, 10), false, false, false);
            changes!(try_write(&fs, file, 0, b"bytes"), true, false, false);
            changes!(fs.set_attributes(file, &size), true, false, false);
            changes!(fs.set_attributes(dir, &mode), false, false, true);
            changes!(fs.allocate(file, 0, 8192, Allocation::Punch), true, false, false);
            changes!(fs.set_xattr(file, b"user.a", value(), SetXattr::Any), true, false, false);
            changes!(fs.remove_xattr(file, b"user.a"), true, false, false);
            changes!(fs.link(file, dir, b"other"), true, false, true);
            changes!(fs.unlink(dir, b"other"), true, false, true);
            let (from, to) = ((ROOT, &b"file"[..]), (dir, &b"file"[..]));
            changes!(fs.rename(from, to, Rename::NoReplace), true, true, true);
            changes!(fs.rename(to, from, Rename::NoReplace), true, true, true);
            changes!(fs.lookup(ROOT, b"file"), false, false, false);
        }
        assert_eq!(env.now(), since, "time has passed");
    });
}
