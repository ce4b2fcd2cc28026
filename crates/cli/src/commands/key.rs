//! `thalweg key`: keys of this machine's user, and the clients that may connect to its servers.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use thalweg_env::Env;
use thalweg_ipc::remote::Server;
use thalweg_net::keys::{Access, Authorized, Client, Home, Key, Offer, PublicKey, Squash, Token};

use crate::failure::{Failure, Outcome};

/// Make keys, and choose which clients on other machines may connect
///
/// A server that listens with `serve --listen`, and each of its clients, have a key of their own, as with ssh. The keys
/// are in a folder: the one that $THALWEG_KEYS names, or /etc/thalweg for root, and ~/.config/thalweg for other users.
///
/// To let in a client: `thalweg key new` on both machines, `thalweg key authorize NAME --token` on the server, and with that
/// token `thalweg key enrol SERVER TOKEN` on the client.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    New(New),
    Show(Show),
    Authorize(Authorize),
    Enrol(Enrol),
    Trust(Trust),
    List(List),
    Revoke(Revoke),
}

/// The folder with the keys.
#[derive(Debug, Args)]
pub(crate) struct KeysFolder {
    /// Folder with the keys [default: $THALWEG_KEYS; or /etc/thalweg for root, ~/.config/thalweg for others]
    #[arg(long, value_name = "FOLDER")]
    keys: Option<PathBuf>,
}

impl KeysFolder {
    pub(crate) fn home(&self) -> Home {
        home(self.keys.as_deref())
    }
}

/// The keys in a folder, or else this user's.
pub(crate) fn home(folder: Option<&Path>) -> Home {
    folder.map_or_else(Home::of_user, Home::at)
}

/// Make this user's key, and print its public half
#[derive(Debug, Args)]
pub(crate) struct New {
    #[command(flatten)]
    folder: KeysFolder,
}

/// Print the public half of this user's key
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    folder: KeysFolder,
    /// Print a JSON object, with the fingerprint and the file
    #[arg(long)]
    json: bool,
}

/// Let a client connect to the servers on this machine
///
/// Either with its public key, as `thalweg key show` prints it on the client; or with a token, with which it can make its
/// key known once.
#[derive(Debug, Args)]
pub(crate) struct Authorize {
    #[command(flatten)]
    folder: KeysFolder,
    /// Name of the client: letters, digits, and `.`, `_`, `-` or `@`
    name: String,
    /// The client's public key: "ed25519 AAAA…"
    #[arg(required_unless_present = "token", conflicts_with = "token", num_args = 1..=3)]
    key: Vec<String>,
    /// Print a token for the client instead
    #[arg(long)]
    token: bool,
    /// Time for which the token can be used, such as 30m, 24h or 7d
    #[arg(long, value_name = "TIME", default_value = "24h", requires = "token")]
    expires: Span,
    /// Show it this volume only [default: all volumes]
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// Let it read, but not write
    #[arg(long)]
    read_only: bool,
}

/// Make this user's key known to a server, and the server's to this user
#[derive(Debug, Args)]
pub(crate) struct Enrol {
    #[command(flatten)]
    folder: KeysFolder,
    /// The server: HOST:PORT, or HOST for the usual port
    server: Server,
    /// A token that `thalweg key authorize NAME --token` printed there
    token: Token,
}

/// Note the key of a server, to connect to it without a token
#[derive(Debug, Args)]
pub(crate) struct Trust {
    #[command(flatten)]
    folder: KeysFolder,
    /// The server: HOST:PORT, or HOST for the usual port
    server: Server,
    /// Its public key, as `thalweg key show` prints it there: "ed25519 AAAA…"
    #[arg(required = true, num_args = 1..=3)]
    key: Vec<String>,
    /// Replace the key that is known so far
    #[arg(long)]
    replace: bool,
}

/// List the clients that may connect
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    folder: KeysFolder,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Shut out a client: its sessions end within about a second, and tokens that it has not used are withdrawn
#[derive(Debug, Args)]
pub(crate) struct Revoke {
    #[command(flatten)]
    folder: KeysFolder,
    /// Its name, its public key, or the fingerprint of that
    client: String,
}

/// A span of time: a number with the unit s, m, h or d.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        let wrong =
            || format!("`{text}` is no time: expected a number with s, m, h or d, such as 24h");
        let unit = text.chars().last().ok_or_else(wrong)?;
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 60 * 60,
            'd' => 24 * 60 * 60,
            _ => return Err(wrong()),
        };
        let number = text[..text.len() - 1].parse::<u64>().ok().filter(|number| *number > 0);
        let span = number.and_then(|number| number.checked_mul(seconds)).ok_or_else(wrong)?;
        Ok(Span(Duration::from_secs(span)))
    }
}

pub(crate) async fn run(env: &Env, command: KeyCommand) -> Outcome<()> {
    match command {
        KeyCommand::New(args) => new(env, &args.folder.home()),
        KeyCommand::Show(args) => show(&args),
        KeyCommand::Authorize(args) => authorize(env, args),
        KeyCommand::Enrol(args) => enrol(env, args).await,
        KeyCommand::Trust(args) => trust(&args),
        KeyCommand::List(args) => list(&args),
        KeyCommand::Revoke(args) => revoke(&args, "thalweg key list"),
    }
}

fn new(env: &Env, home: &Home) -> Outcome<()> {
    let path = home.key_file();
    if path.try_exists()? {
        return Err(Failure::new(format!("{} exists", path.display()))
            .help("`thalweg key show` prints its public half; to make another key, move this one away first"));
    }
    let key = Key::generate(env)?;
    home.add_key(&key)?;
    println!("{}", key.public());
    Ok(())
}

fn show(args: &Show) -> Outcome<()> {
    let home = args.folder.home();
    let key = home.key()?.public();
    match args.json {
        true => println!(
            "{}",
            json!({
                "key": key.to_string(), "fingerprint": key.fingerprint(), "file": home.key_file(),
            })
        ),
        false => println!("{key}"),
    }
    Ok(())
}

fn authorize(env: &Env, args: Authorize) -> Outcome<()> {
    let home = args.folder.home();
    // Without a key of its own a server cannot listen, and a token cannot name it.
    home.key()?;
    let path = args.volume.map_or("/".to_owned(), |name| format!("/{name}"));
    let access = if args.read_only { Access::Read } else { Access::Write };
    if !args.token {
        let key: PublicKey = args.key.join(" ").parse()?;
        let client = Client::with(key, &args.name, &path, access)?;
        return Ok(Authorized::update(&home.authorized_clients(), |all| all.add(client))?);
    }
    let client = (&*args.name, &*path, access, Squash::default());
    println!("{}", offer(env, &home, client, args.expires)?);
    Ok(())
}

/// A new token for a client with this name, path and access, and these users. The client brings its key with the token.
pub(crate) fn offer(
    env: &Env,
    home: &Home,
    (name, path, access, squash): (&str, &str, Access, Squash),
    expires: Span,
) -> Outcome<Token> {
    let own = home.key()?.public();
    let client = Client { squash, ..Client::with(own, name, path, access)? };
    if home.authorized()?.clients().any(|known| known.name == client.name) {
        return Err(Failure::new(format!("there is a client {} already", client.name))
            .help("choose another name, or revoke that client first"));
    }
    let token = Token::generate(env, &own)?;
    let now = env.wall_clock();
    Offer::new(&token, &client, now.saturating_add(expires.0.as_secs()))
        .add_to(&home.offers(), now)?;
    Ok(token)
}

async fn enrol(env: &Env, args: Enrol) -> Outcome<()> {
    let Enrol { folder, server, token } = args;
    let home = folder.home();
    let key = home.key()?;
    let name = server.enrol(env, &home, &key, &token, None).await?;
    println!("{server} knows this key as {name}");
    Ok(())
}

fn trust(args: &Trust) -> Outcome<()> {
    let home = args.folder.home();
    let key: PublicKey = args.key.join(" ").parse()?;
    let server = args.server.to_string();
    match home.server(&server)? {
        Some(known) if known != key && !args.replace => {
            Err(Failure::new(format!("{server} is known with another key, {known:?}"))
                .help("if its key was changed on purpose, --replace the old one"))
        }
        _ => Ok(home.trust(&server, &key)?),
    }
}

pub(crate) fn list(args: &List) -> Outcome<()> {
    let authorized = args.folder.home().authorized()?;
    let object = |it: &Client| {
        json!({
            "name": it.name, "key": it.key.to_string(), "fingerprint": it.key.fingerprint(), "path": it.path,
            "access": it.access.word(), "squash": it.squash.word(),
            "nobody": it.squash.nobody().map(|nobody| nobody.to_string()),
        })
    };
    match args.json {
        true => println!("{}", authorized.clients().map(object).collect::<serde_json::Value>()),
        false => {
            for Client { key, name, path, access, squash } in authorized.clients() {
                let (access, squash) = (access.word(), squash.to_string());
                println!("{name:20} {path:20} {access} {squash:6} {}", key.fingerprint());
            }
        }
    }
    Ok(())
}

/// `list` is the command that prints the clients.
pub(crate) fn revoke(args: &Revoke, list: &str) -> Outcome<()> {
    let home = args.folder.home();
    let path = home.authorized_clients();
    let removed = Authorized::update(&path, |all| Ok(all.remove(&args.client)))?;
    let withdrawn = Offer::withdraw(&home.offers(), &args.client)?;
    if withdrawn > 0 {
        println!("{withdrawn} unused tokens of {} are withdrawn", args.client);
    }
    match removed {
        Some(client) => {
            println!("{} may no longer connect", client.name);
            Ok(())
        }
        None if withdrawn > 0 => Ok(()),
        None => Err(Failure::new(format!("there is no client {}", args.client))
            .help(format!("`{list}` prints those that there are"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_units() {
        let read = |text: &str| text.parse::<Span>().map(|span| span.0.as_secs());
        assert_eq!(
            ["30s", "2m", "24h", "7d"].map(|it| read(it).unwrap()),
            [30, 120, 86_400, 604_800]
        );
        for text in ["", "5", "h", "0h", "-1h", "1.5h", "1w", "999999999999999999d", "5µ"] {
            assert!(read(text).unwrap_err().contains("24h"), "{text}");
        }
    }
}
