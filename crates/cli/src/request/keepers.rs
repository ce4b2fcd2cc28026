//! The option `replicate=HOST[:PORT][+HOST…][:memory|disk]` of a mount with a journal: the keepers of its copies.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thalweg_cluster::client::address::KEEPER_PORT;
use thalweg_ipc::remote::Server;

use crate::failure::Failure;

/// The keepers of the copies of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeeperHosts {
    /// `HOST:PORT` of each.
    pub(crate) hosts: Vec<String>,
    /// They have records on their drives before they answer.
    pub(crate) are_durable: bool,
}

impl FromStr for KeeperHosts {
    type Err = Failure;

    fn from_str(text: &str) -> Result<KeeperHosts, Failure> {
        let (hosts, are_durable) = match text.rsplit_once(':') {
            Some((hosts, "memory")) => (hosts, false),
            Some((hosts, "disk")) => (hosts, true),
            _ => (text, true),
        };
        let known = |host: &str| Server::with_port(host, KEEPER_PORT).map(|it| it.to_string());
        let known: Result<Vec<String>, _> = hosts.split('+').map(known).collect();
        let wrong = |why: &str| {
            Failure::new(format!("replicate={text} {why}")).help(
                "write replicate=HOST, HOST:PORT or HOST+HOST, and :memory or :disk behind it",
            )
        };
        let hosts = known.map_err(|_| wrong("names no hosts"))?;
        let mut sorted = hosts.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() < hosts.len() {
            return Err(wrong("names a host twice"));
        }
        Ok(KeeperHosts { hosts, are_durable })
    }
}

impl fmt::Display for KeeperHosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.hosts.join("+"), if self.are_durable { "disk" } else { "memory" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_ports_and_are_separated() {
        for (text, expected) in [
            ("a", "a:7701:disk"),
            ("a:9", "a:9:disk"),
            ("a:9+b:memory", "a:9+b:7701:memory"),
            ("[::1]:5+10.0.0.1:disk", "[::1]:5+10.0.0.1:7701:disk"),
        ] {
            assert_eq!(text.parse::<KeeperHosts>().unwrap().to_string(), expected);
        }
        for text in ["", "+", "a+", "a:tape", "a:0", ":memory", "a+a:7701", "a b"] {
            assert!(text.parse::<KeeperHosts>().is_err(), "{text}");
        }
    }
}
