//! Permissions of users.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use crate::names::{c, errno};
use crate::rig::{Make, Rig, as_nobody};

const NOBODY: u32 = 65534;

pub(crate) fn set_xattr(path: &Path, name: &str, value: &[u8], flags: i32) -> io::Result<()> {
    let (path, name) = (c(path), CString::new(name).unwrap());
    // SAFETY: path and name are terminated strings, and the value has as many bytes.
    let result = unsafe {
        libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn get_xattr(path: &Path, name: &str, room: usize) -> io::Result<Vec<u8>> {
    let (path, name) = (c(path), CString::new(name).unwrap());
    let mut value = vec![0; room];
    // SAFETY: path and name are terminated strings, and the value has as many bytes.
    let len = unsafe {
        libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    value.resize(len, 0);
    Ok(value)
}

pub(crate) fn list_xattrs(path: &Path) -> io::Result<Vec<String>> {
    let path = c(path);
    let mut names = vec![0_u8; 65536];
    // SAFETY: the path is a terminated string, and there is as much room.
    let len = unsafe { libc::llistxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<_> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    names.sort();
    Ok(names)
}

/// An access control list as an attribute's value; entries of tag, permissions, and user or group.
pub(crate) fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// The mode with which the kernel would run a file: the cached one after a check of permissions, which asks
/// again only after an invalidation.
fn known_mode(path: &Path) -> u32 {
    // SAFETY: zeros are a valid value, which the call fills in.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let (path, flags) = (c(path), libc::AT_STATX_DONT_SYNC);
    // SAFETY: the path is a terminated string, alive for the call.
    assert_eq!(unsafe { libc::access(path.as_ptr(), libc::X_OK) }, 0);
    // SAFETY: the path is a terminated string and the place is ours.
    let result =
        unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, libc::STATX_MODE, &mut found) };
    assert_eq!(result, 0);
    u32::from(found.stx_mode) & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs a script as a user without privileges; returns whether it succeeded.
fn may(script: &str) -> bool {
    as_nobody("sh", &["-c", script]).status.success()
}

pub(crate) fn others_are_kept_out(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    let root = rig.root().display().to_string();
    fs::write(rig.path("secret"), "s").unwrap();
    chmod(&rig.path("secret"), 0o600);
    fs::write(rig.path("public"), "p").unwrap();
    chmod(&rig.path("public"), 0o644);
    fs::create_dir(rig.path("closed")).unwrap();
    fs::write(rig.path("closed/in"), "i").unwrap();
    chmod(&rig.path("closed"), 0o700);
    fs::create_dir(rig.path("tmp")).unwrap();
    chmod(&rig.path("tmp"), 0o1777);
    fs::write(rig.path("tmp/roots"), "r").unwrap();
    chmod(&rig.path("tmp/roots"), 0o666);
    assert!(may(&format!("cat {root}/public")));
    for denied in [
        "cat R/secret",
        "echo > R/secret",
        "echo >> R/public",
        "cat R/closed/in",
        "ls R/closed",
        "stat R/closed/in",
        "touch R/new",
        "rm -f R/public",
        "mkdir R/d",
        "mv R/public R/else",
        "ln R/public R/link",
        "chmod 777 R/public",
        "chown nobody R/public",
        "truncate -s 0 R/public",
        "rm -f R/tmp/roots",
        "mv R/tmp/roots R/tmp/mine",
        "mknod R/tmp/dev c 1 3",
        "touch -d 2001-01-01 R/tmp/roots",
    ] {
        assert!(!may(&denied.replace('R', &root)), "allowed: {denied}");
    }
    assert_eq!(fs::read(rig.path("public")).unwrap(), b"p");
    assert!(may(&format!("cd {root}/tmp && echo x > mine && chmod 600 mine && mv mine own")));
    let own = fs::metadata(rig.path("tmp/own")).unwrap();
    assert_eq!((own.uid(), own.gid(), own.mode() & 0o7777), (NOBODY, NOBODY, 0o600));
    assert!(may(&format!("echo y >> {root}/tmp/roots && cd {root}/tmp && rm own")));
    // The umask counts, and a list lets single users in.
    assert!(may(&format!("cd {root}/tmp && umask 027 && mkdir d && touch f")));
    assert_eq!((mode(&rig.path("tmp/d")), mode(&rig.path("tmp/f"))), (0o750, 0o640));
    let list = acl(&[(1, 6, !0), (2, 4, NOBODY), (4, 0, !0), (16, 4, !0), (32, 0, !0)]);
    set_xattr(&rig.path("secret"), "system.posix_acl_access", &list, 0).unwrap();
    assert_eq!(mode(&rig.path("secret")), 0o640);
    assert!(may(&format!("cat {root}/secret")));
    assert!(!may(&format!("echo > {root}/secret")));
    chmod(&rig.path("secret"), 0o600);
    assert!(!may(&format!("cat {root}/secret")), "the mode masks the list");
}

pub(crate) fn writes_take_privileges_away(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    let capabilities = [&2_u32.to_le_bytes().map(|byte| byte)[..], &[0; 16]].concat();
    let mut capabilities = capabilities;
    capabilities[..4].copy_from_slice(&0x0200_0001_u32.to_le_bytes());
    capabilities[4..8].copy_from_slice(&0x400_u32.to_le_bytes());
    let direct = "dd if=/dev/zero of=F bs=4096 count=1 oflag=direct conv=notrunc status=none";
    let copy = "python3 -c \"import os; f = os.open('F', os.O_RDWR); \
                os.copy_file_range(f, f, 3, 0, 100)\"";
    for (way, how) in [
        ("append", "echo x >> F"),
        ("truncate", "truncate -s 1 F"),
        ("empty", ": > F"),
        ("direct", direct),
        ("reserve", "fallocate -l 10000 F"),
        ("copy", copy),
    ] {
        let path = rig.path(way);
        let script = how.replace('F', &path.display().to_string());
        fs::write(&path, "program").unwrap();
        set_xattr(&path, "security.capability", &capabilities, 0).unwrap();
        chmod(&path, 0o6777);
        assert_eq!(mode(&path), 0o6777);
        assert!(may(&script), "{way}");
        assert_eq!(mode(&path), 0o777, "{way}");
        assert_eq!(
            errno(get_xattr(&path, "security.capability", 100)),
            libc::ENODATA,
            "{way} leaves capabilities"
        );
        // Given again after a write showed that there was none.
        assert!(may(&script));
        set_xattr(&path, "security.capability", &capabilities, 0).unwrap();
        assert!(may(&script));
        let left = get_xattr(&path, "security.capability", 100);
        assert_eq!(errno(left), libc::ENODATA, "{way} leaves capabilities");
        chmod(&path, 0o6777);
        assert!(may(&script));
        // The mode for the kernel's next exec, without another request.
        assert_eq!(known_mode(&path), 0o777, "{way}, the second time");
        assert_eq!(mode(&path), 0o777, "{way}, the second time");
    }
    let path = rig.path("given");
    fs::write(&path, "program").unwrap();
    chmod(&path, 0o6755);
    // Root may write anything.
    fs::write(&path, "other").unwrap();
    assert_eq!(mode(&path), 0o6755);
    chown(&path, Some(NOBODY), None).unwrap();
    assert_eq!(mode(&path), 0o755);
    fs::create_dir(rig.path("d")).unwrap();
    chmod(&rig.path("d"), 0o2755);
    chown(rig.path("d"), Some(NOBODY), Some(NOBODY)).unwrap();
    assert_eq!(mode(&rig.path("d")), 0o2755, "a directory keeps it");
}

pub(crate) fn directories_hand_down_group_and_lists(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    let d = rig.path("d");
    fs::create_dir(&d).unwrap();
    chown(&d, None, Some(1234)).unwrap();
    chmod(&d, 0o2777);
    fs::write(d.join("f"), "").unwrap();
    fs::create_dir(d.join("e")).unwrap();
    let group = |path: &Path| fs::metadata(path).unwrap().gid();
    assert_eq!((group(&d.join("f")), group(&d.join("e"))), (1234, 1234));
    assert_eq!((mode(&d.join("f")) & 0o2000, mode(&d.join("e")) & 0o2000), (0, 0o2000));
    let default = [(1, 7, !0), (2, 5, NOBODY), (4, 5, !0), (16, 5, !0), (32, 0, !0)];
    set_xattr(&d, "system.posix_acl_default", &acl(&default), 0).unwrap();
    fs::write(d.join("g"), "").unwrap();
    fs::create_dir(d.join("h")).unwrap();
    // The umask does not count; the requested mode does.
    assert_eq!((mode(&d.join("g")), mode(&d.join("h")) & 0o777), (0o640, 0o750));
    let access = get_xattr(&d.join("g"), "system.posix_acl_access", 100).unwrap();
    let masked = [(1, 6, !0), (2, 5, NOBODY), (4, 5, !0), (16, 4, !0), (32, 0, !0)];
    assert_eq!(access, acl(&masked));
    let handed = get_xattr(&d.join("h"), "system.posix_acl_default", 100).unwrap();
    assert_eq!(handed, acl(&default));
    assert_eq!(list_xattrs(&d.join("g")).unwrap(), ["system.posix_acl_access"]);
    // A list that says no more than the mode can becomes the mode.
    let plain = acl(&[(1, 6, !0), (4, 2, !0), (32, 1, !0)]);
    set_xattr(&d.join("g"), "system.posix_acl_access", &plain, 0).unwrap();
    assert_eq!(mode(&d.join("g")), 0o621);
    assert!(list_xattrs(&d.join("g")).unwrap().is_empty());
}

pub(crate) fn attributes_have_namespaces(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    let a = rig.path("a");
    fs::write(&a, "").unwrap();
    chmod(&a, 0o666);
    set_xattr(&a, "user.one", b"1", libc::XATTR_CREATE).unwrap();
    assert_eq!(errno(set_xattr(&a, "user.one", b"2", libc::XATTR_CREATE)), libc::EEXIST);
    assert_eq!(errno(set_xattr(&a, "user.two", b"2", libc::XATTR_REPLACE)), libc::ENODATA);
    set_xattr(&a, "user.one", b"eleven", libc::XATTR_REPLACE).unwrap();
    assert_eq!(get_xattr(&a, "user.one", 100).unwrap(), b"eleven");
    assert_eq!(get_xattr(&a, "user.one", 0).unwrap().len(), 6);
    assert_eq!(errno(get_xattr(&a, "user.one", 5)), libc::ERANGE);
    assert_eq!(errno(get_xattr(&a, "user.none", 5)), libc::ENODATA);
    assert_eq!(errno(set_xattr(&a, "other.x", b"", 0)), libc::EOPNOTSUPP);
    let large = vec![7; 10_000];
    set_xattr(&a, "user.large", &large, 0).unwrap();
    assert_eq!(get_xattr(&a, "user.large", 65536).unwrap(), large);
    set_xattr(&a, "trusted.secret", b"x", 0).unwrap();
    set_xattr(&a, "user.empty", b"", 0).unwrap();
    let all = ["trusted.secret", "user.empty", "user.large", "user.one"];
    assert_eq!(list_xattrs(&a).unwrap(), all);
    let script = "import os,sys; print(*sorted(os.listxattr(sys.argv[1])))";
    let path = a.display().to_string();
    let seen = as_nobody("python3", &["-c", script, &path]).stdout;
    assert_eq!(String::from_utf8_lossy(&seen).trim(), "user.empty user.large user.one");
    for script in [
        "import os,sys; os.getxattr(sys.argv[1], 'trusted.secret')",
        "import os,sys; os.setxattr(sys.argv[1], 'trusted.mine', b'')",
        "import os,sys; os.setxattr(sys.argv[1], 'security.capability', b'\\1\\0\\0\\2' + bytes(16))",
    ] {
        assert!(!as_nobody("python3", &["-c", script, &path]).status.success(), "{script}");
    }
    let script = "import os,sys; os.removexattr(sys.argv[1], 'user.one')";
    assert!(as_nobody("python3", &["-c", script, &path]).status.success());
    assert_eq!(list_xattrs(&a).unwrap(), all[..3]);
}
