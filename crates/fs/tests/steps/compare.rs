//! The comparison of everything in two filesystems.

use thalweg_fs::{Cookie, Entry, Filesystem, Ino, Kind, Lookup};

use super::{NAMES, Normalize, Twin, answer, name, shown};

/// Every entry of a directory, read a few at a time, by name.
async fn entries(fs: &dyn Filesystem, ino: Ino) -> Vec<Entry> {
    let (mut all, mut from) = (Vec::new(), Cookie::START);
    loop {
        let some = fs.read_directory(ino, from, 7, true).await.unwrap();
        let Some(last) = some.last() else { break };
        from = last.cookie;
        all.extend(some);
    }
    all.sort_by(|a: &Entry, b| a.name.cmp(&b.name));
    all
}

/// Compares inodes of two filesystems: their attributes, names and content.
///
/// # Panics
/// When something differs.
pub async fn compare(
    (fs, naive): (&dyn Filesystem, &dyn Filesystem),
    twins: &[Twin],
    normalize: Normalize,
) {
    let show = |found| shown(found, normalize);
    for &(a, b) in twins {
        let ours = answer(fs.attributes(a).await, show);
        assert_eq!(ours, answer(naive.attributes(b).await, show), "{a}");
        let Ok(attributes) = fs.attributes(a).await else { continue };
        let names = fs.xattrs(a).await.unwrap();
        assert_eq!(names, naive.xattrs(b).await.unwrap());
        for name in names {
            assert_eq!(fs.xattr(a, &name).await.unwrap(), naive.xattr(b, &name).await.unwrap());
        }
        match attributes.kind {
            Kind::Directory => {
                compare_directory((fs, naive), (a, b), normalize).await;
                if attributes.links > 0 {
                    let parents = (fs.parent(a).await.unwrap(), naive.parent(b).await.unwrap());
                    assert!(twins.contains(&parents), "the parent of {a}");
                }
            }
            Kind::File => {
                for at in [0, 1 << 33] {
                    let len = 1_000_000.min(attributes.size.saturating_sub(at)) as usize;
                    let ours = fs.read(a, at, len).await.unwrap().concat();
                    let theirs = naive.read(b, at, len).await.unwrap().concat();
                    assert!(ours == theirs, "the bytes of {a}");
                }
            }
            Kind::Symlink => {
                assert_eq!(fs.read_link(a).await.unwrap(), naive.read_link(b).await.unwrap());
            }
            _ => {}
        }
    }
}

/// Compares the names in a directory, as they are listed and as they are looked up.
async fn compare_directory(
    (fs, naive): (&dyn Filesystem, &dyn Filesystem),
    (a, b): Twin,
    normalize: Normalize,
) {
    let listed = |entries: Vec<Entry>| -> Vec<_> {
        let entries = entries.into_iter();
        entries
            .map(|it| (it.name, it.kind, it.attributes.map(|found| shown(found, normalize))))
            .collect()
    };
    assert_eq!(listed(entries(fs, a).await), listed(entries(naive, b).await), "{a}");
    let found = |found| match found {
        Lookup::Found(found) => shown(found, normalize),
        Lookup::Absent(_) => "absent".to_owned(),
    };
    for name in (3..NAMES).map(name) {
        let ours = answer(fs.lookup(a, &name).await, found);
        assert_eq!(ours, answer(naive.lookup(b, &name).await, found), "{name:?} in {a}");
    }
}
