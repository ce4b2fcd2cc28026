//! What a client with a journal could not write back: conflicts of a client with a key as it is by default, and a journal that is damaged.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::cluster::Scene;
use crate::cluster_journal::{Foreground, first_mount, inspect};
use crate::files::text;
use crate::run::{bad, good, has, thalweg};

const USER: u32 = 4001;

/// Runs a script in a directory as an ordinary user.
fn as_user(directory: &Path, script: &str) -> Output {
    let mut command = Command::new("setpriv");
    let id = USER.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-ec", script]);
    command.current_dir(directory).output().unwrap()
}

fn said_to_user(directory: &Path, script: &str) -> String {
    let output = as_user(directory, script);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{script}: {said} {:?}", String::from_utf8(output.stderr));
    said
}

/// Root of the client's machine may write nowhere at the server: the user has the copies, and the next mount is there.
#[test]
fn a_user_of_a_client_with_a_default_key_applies_conflict_copies() {
    let Some(scene) = Scene::with_mounts() else { return };
    if !has("setpriv") {
        return;
    }
    let home = &scene.home;
    fs::set_permissions(home.path("."), Permissions::from_mode(0o755)).unwrap();
    let program = home.path("program");
    fs::copy(env!("CARGO_BIN_EXE_thalweg"), &program).unwrap();
    let office = scene.mount("office", "/", "--rw");
    fs::create_dir(office.join("home")).unwrap();
    chown(office.join("home"), Some(USER), Some(USER)).unwrap();
    let token = scene.token_with("one", &["--path", "/", "--rw"]);
    let options = format!("journal_dev={},journal_size=16M", home.path("journal").display());
    let mut command = scene.mount_command("one", "/");
    let mount = Foreground::start(home, command.args(["-o", &options, "--token", &token]), "one");
    let mounted = home.path("mnt-one");
    said_to_user(&mounted, "mkdir home/d; cd home/d; for it in x y a; do echo before >$it; done");
    good(thalweg(["wait", "--for", "server"]).arg(mounted.join("home/d/a")));
    said_to_user(&mounted, "cd home/d; echo after >a; echo new >n; sync a n");
    mount.kill(home, "one");
    assert_eq!(text(&office.join("home/d/a")), "before\n");

    good(scene.mount_command("one", "/").args(["-o", &options]));
    // Root may not read them, and hears which user has them.
    let output = thalweg(["cluster", "conflicts", "list"]).arg(&mounted).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("for the user 4001 to read"), "{said}");
    let run = |words: &str| {
        let (program, mounted) = (program.display(), mounted.display());
        let words = words.replace("MOUNT", &mounted.to_string());
        format!("{program} cluster conflicts {words}")
    };
    let list = || -> Value {
        serde_json::from_str(&said_to_user(&mounted, &run("list --json MOUNT"))).unwrap()
    };
    let sets = list();
    assert_eq!((sets.as_array().unwrap().len(), &sets[0]["user"]), (1, &Value::from(USER)));
    let name = sets[0]["name"].as_str().unwrap().to_owned();
    let copy = sets[0]["entries"][0]["copy"].as_str().unwrap().to_owned();
    assert_eq!(copy, format!("/home/d/a.conflict-{name}"), "{sets}");
    let copy = fs::metadata(office.join(&copy[1..])).unwrap();
    assert_eq!((copy.uid(), copy.gid(), copy.len()), (USER, USER, 6));
    let said = said_to_user(&mounted, &run(&format!("show MOUNT {USER}/{name}")));
    assert!(said.contains("/home/d/n: new"), "{said}");
    let folder = home.path("of-user");
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(USER), None).unwrap();
    said_to_user(&folder, &run(&format!("export MOUNT {name} exported")));
    assert_eq!(text(&folder.join(format!("exported/home/d/n.conflict-{name}"))), "new\n");
    said_to_user(&mounted, &run(&format!("apply MOUNT {name}")));
    assert_eq!(text(&office.join("home/d/a")), "after\n");
    assert_eq!(text(&office.join("home/d/n")), "new\n");
    assert_eq!(list(), Value::Array(Vec::new()));
    assert!(scene.umount("one", &[]).status.success());
}

/// It is not mounted; what can be read of it is exported, what cannot is named, and it can be given up.
#[test]
fn a_journal_that_is_damaged_in_its_middle_is_exported_and_erased() {
    let Some(mut scene) = Scene::with_mounts() else { return };
    let (mount, journal, directory) = first_mount(&scene);
    let file = File::create(directory.join("f")).unwrap();
    for name in ["x", "y"] {
        File::create(directory.join(name)).unwrap();
    }
    file.sync_all().unwrap();
    good(thalweg(["wait", "--for", "server"]).arg(directory.join("f")));
    scene.server.as_mut().unwrap().kill_now();
    for number in 0..40_u8 {
        file.write_all_at(&[b'a' + number % 26; 600], u64::from(number) * 600).unwrap();
        file.sync_all().unwrap();
    }
    drop(file);
    let all = inspect(&journal)["changes"].as_u64().unwrap();
    mount.kill(&scene.home, "one");
    let drive = File::options().read(true).write(true).open(&journal).unwrap();
    let content = fs::read(&journal).unwrap();
    // In the bytes of the 21st write.
    let at = content.windows(200).position(|it| it == [b'a' + 20; 200]).unwrap() as u64;
    drive.write_all_at(b"damage", at + 100).unwrap();
    drop(drive);

    scene.serve_with(&[]);
    let options = format!("journal_dev={}", journal.display());
    let said = bad(scene.mount_command("one", "/").args(["-o", &options]), 1);
    assert!(said.contains("damaged in its middle") && said.contains("erase --force"), "{said}");
    let report = inspect(&journal);
    let (first, last) = (&report["damage"]["lost"][0][0], &report["damage"]["lost"][0][1]);
    let lost = last.as_u64().unwrap() + 1 - first.as_u64().unwrap();
    let (before, behind) = (report["changes"].as_u64(), report["damage"]["behind"].as_u64());
    assert_eq!(before.unwrap() + lost + behind.unwrap(), all, "{report}");
    let said = good(thalweg(["cluster", "journal", "inspect"]).arg(&journal));
    assert!(said.contains("damaged") && said.contains(&format!("positions {first}")), "{said}");
    let folder = scene.home.path("exported");
    let said = good(thalweg(["cluster", "journal", "export"]).arg(&journal).arg(&folder));
    assert!(said.contains("missing, since they cannot be read"), "{said}");
    let damage: Value = serde_json::from_str(&text(&folder.join("damage.json"))).unwrap();
    assert_eq!(damage, report["damage"]);
    let of_file = |folder: &Path| {
        let list: Value = serde_json::from_str(&text(&folder.join("journal.json"))).unwrap();
        let is_file = |it: &&Value| it["is_file"] == true;
        let ino = list.as_array().unwrap().iter().find(is_file).unwrap()["ino"].clone();
        fs::read(folder.join(format!("inode-{ino}"))).unwrap()
    };
    let (first, rest) = (of_file(&folder), of_file(&folder.join("behind-damage")));
    assert_eq!((first.len(), first.last()), (20 * 600, Some(&(b'a' + 19))));
    assert_eq!((rest.len(), rest.last()), (40 * 600, Some(&(b'a' + 39 - 26))));
    let said = bad(thalweg(["cluster", "journal", "erase"]).arg(&journal), 1);
    assert!(said.contains("damaged in its middle") && said.contains("export"), "{said}");
    let said = bad(thalweg(["cluster", "journal", "create"]).arg(&journal), 1);
    assert!(said.contains("is a journal with changes"), "{said}");
    good(thalweg(["cluster", "journal", "erase", "--force"]).arg(&journal));
    assert_eq!(inspect(&journal)["changes"], 0);
    good(scene.mount_command("one", "/").args(["-o", &options]));
    assert!(scene.umount("one", &[]).status.success());
}
