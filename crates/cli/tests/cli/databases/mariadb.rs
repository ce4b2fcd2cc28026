//! MariaDB with InnoDB.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::database::{Database, Process, Shell, is_installed, numbers, value};

pub(crate) struct MariaDb {
    client: Shell,
    process: Process,
}

impl Database for MariaDb {
    const SIZES: [&str; 2] = ["512M", "64M"];

    fn is_here() -> bool {
        is_installed("mariadbd", "mariadb-server-core")
            && is_installed("mariadb", "mariadb-client-core")
    }

    fn start(directory: &Path, scratch: &Path) -> MariaDb {
        [directory, scratch].iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        let socket = scratch.join("mariadb.sock");
        let _ = fs::remove_file(&socket);
        let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let mut command = Command::new("mariadbd");
        // Without tables of rights, which only an installation makes.
        command.args(["--no-defaults", "--user=root", "--skip-grant-tables", "--skip-networking"]);
        command.args(["--innodb-log-file-size=4M", "--innodb-buffer-pool-size=16M"]);
        // A file of all tables that has room for the rows: fallocate, by which it grows, is a call to the server.
        command
            .args(["--innodb-file-per-table=0", "--innodb-data-file-path=ibdata1:24M:autoextend"]);
        command.args([option("datadir", directory), option("socket", &socket)]);
        command.arg(option("pid-file", &scratch.join("mariadb.pid")));
        let process =
            Process::until(&mut command, &scratch.join("mariadb.log"), || socket.exists());
        let mut command = Command::new("mariadb");
        command.args(["--no-defaults", "--batch", "--unbuffered", "--skip-column-names"]);
        let mut client = Shell::start(command.arg(option("socket", &socket)));
        let table = "CREATE TABLE IF NOT EXISTS kept.entries \
             (id BIGINT PRIMARY KEY, value VARCHAR(600) UNIQUE) ENGINE = InnoDB;";
        let made = format!("CREATE DATABASE IF NOT EXISTS kept; {table} SELECT 'made';");
        assert_eq!(client.ask(&made).as_deref(), Some("made"));
        MariaDb { client, process }
    }

    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn commit(&mut self, row: u64) -> bool {
        let insert = format!("INSERT INTO kept.entries VALUES ({row}, '{}');", value(row));
        self.client.ask(&format!("{insert} SELECT 'done';")).is_some()
    }

    fn rows(&mut self) -> Vec<u64> {
        let all = "SELECT COALESCE(GROUP_CONCAT(id ORDER BY id), '') FROM kept.entries;";
        numbers(&self.client.ask(all).unwrap())
    }

    fn check(&mut self) {
        let found = self.client.ask("CHECK TABLE kept.entries EXTENDED;");
        assert!(found.as_ref().is_some_and(|it| it.ends_with("OK")), "{found:?}");
    }

    fn log(directory: &Path) -> Vec<PathBuf> {
        vec![directory.join("ib_logfile0")]
    }
}
