//! Keys, the clients that a server knows, and the tokens that enrol them.

use std::fmt;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::str::FromStr;

use thalweg_net::keys::{
    Access, Authorized, Client, Key, KeyError, Nobody, Offer, PublicKey, Squash, Token,
};
use thalweg_sim::runtime::run;

fn keys(count: usize) -> Vec<Key> {
    run(1, |env| async move { (0..count).map(|_| Key::generate(&env).unwrap()).collect() })
}

/// What an invalid text is told.
fn why<T: FromStr<Err = KeyError> + fmt::Debug>(text: &str) -> String {
    text.parse::<T>().unwrap_err().to_string()
}

/// The key pair of RFC 8032, 7.1, test 1, in the forms of RFC 8410.
#[test]
fn keys_have_the_forms_of_the_standards() {
    let pem = "-----BEGIN PRIVATE KEY-----\n\
               MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
               -----END PRIVATE KEY-----\n";
    let key = Key::from_pem(pem).unwrap();
    assert_eq!(key.public().to_string(), "ed25519 11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=");
    let spki = key.public().to_spki();
    assert_eq!(spki.len(), 44);
    assert_eq!(PublicKey::from_spki(&spki), Some(key.public()));
    assert_eq!(PublicKey::from_spki(&spki[1..]), None);
    assert_eq!(PublicKey::from_spki(&[&spki[..], &[0]].concat()), None);
    let print = key.public().fingerprint();
    assert!(print.starts_with("SHA256:") && print.len() == 50, "{print}");
    assert!(!format!("{key:?}").contains("nWGxne"), "a secret is shown");
}

#[test]
fn a_key_comes_back_from_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let [one, other] = &keys(2)[..] else { panic!() };
    assert_ne!(one.public(), other.public());
    one.write_new(&path).unwrap();
    assert_eq!(Key::read(&path).unwrap().public(), one.public());
    // A key is never overwritten.
    assert!(other.write_new(&path).unwrap_err().to_string().contains("exists"));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    let refused = Key::read(&path).unwrap_err().to_string();
    assert!(refused.contains("other users may read this private key (mode 640)"), "{refused}");
    assert!(
        Key::read(&folder.path().join("none"))
            .unwrap_err()
            .to_string()
            .contains("none: No such file")
    );
    let text: PublicKey = format!("{} alice@host", one.public()).parse().unwrap();
    assert_eq!(text, one.public());
}

#[test]
fn what_is_no_key_is_refused() {
    assert!(why::<PublicKey>("").contains("begins with `ed25519`"));
    assert!(why::<PublicKey>("ssh-rsa AAAA").contains("not with `ssh-rsa`"));
    assert!(why::<PublicKey>("ed25519 AAAA").contains("32 bytes"));
    assert!(why::<PublicKey>("ed25519 !").contains("base64"));
    for text in ["", "nonsense", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"] {
        assert!(Key::from_pem(text).is_err(), "{text}");
    }
}

#[test]
fn clients_are_added_found_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("authorized_clients");
    let keys: Vec<PublicKey> = keys(3).iter().map(Key::public).collect();
    assert_eq!(Authorized::read(&path).unwrap().clients().count(), 0);
    let reader = Client {
        access: Access::Read,
        path: "/home".to_owned(),
        ..Client::new(keys[1], "bob").unwrap()
    };
    Authorized::update(&path, |authorized| {
        authorized.add(Client::new(keys[0], "alice")?)?;
        authorized.add(reader.clone())
    })
    .unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, format!("{} alice / rw\n{} bob /home ro\n", keys[0], keys[1]));
    let mut again = Authorized::read(&path).unwrap();
    assert_eq!(again.client(&keys[1]), Some(&reader));
    assert_eq!(again.client(&keys[2]), None);
    let twice = again.add(Client::new(keys[0], "carol").unwrap()).unwrap_err();
    assert!(twice.to_string().contains("alice has this key already"), "{twice}");
    let twice = again.add(Client::new(keys[2], "bob").unwrap()).unwrap_err();
    assert!(twice.to_string().contains("a client bob already"), "{twice}");
    assert_eq!(again.remove("carol"), None);
    assert_eq!(again.remove("bob"), Some(reader));
    assert_eq!(again.remove(&keys[0].fingerprint()).unwrap().name, "alice");
    assert_eq!(again.clients().count(), 0);
}

#[test]
fn a_wrong_line_is_named_and_notes_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("authorized_clients");
    let keys: Vec<PublicKey> = keys(2).iter().map(Key::public).collect();
    let text = format!("# our clients\n\n{} alice\n", keys[0]);
    std::fs::write(&path, &text).unwrap();
    let authorized = Authorized::read(&path).unwrap();
    assert_eq!(authorized.clients().map(|client| &client.name[..]).collect::<Vec<_>>(), ["alice"]);
    assert!(Authorized::update(&path, |list| Ok(list.remove("alice"))).unwrap().is_some());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "# our clients\n\n");
    let wrong = [
        (String::from("ed25519 AAAA alice"), "32 bytes"),
        (keys[1].to_string(), "followed by the client's name"),
        (format!("{} a,b", keys[1]), "`a,b` is no name"),
        (format!("{} bob home", keys[1]), "`home` is no path"),
        (format!("{} bob / rx", keys[1]), "neither ro nor rw"),
        (format!("{} bob / rw more", keys[1]), "name, path, ro or rw, and squash="),
        (format!("{} bob / rw squash=some", keys[1]), "none of `root`, `all` and `none`"),
        (format!("{} bob / rw squash=root:0:0", keys[1]), "not 0"),
        (format!("{} bob / rw squash=none:7:7", keys[1]), "there is no nobody"),
        (format!("{} bob", keys[0]), "alice has this key already"),
    ];
    for (line, why) in wrong {
        std::fs::write(&path, format!("{text}{line}\n")).unwrap();
        let error = Authorized::read(&path).unwrap_err().to_string();
        assert!(error.contains("line 4") && error.contains(why), "{line}: {error}");
    }
}

#[test]
fn the_file_says_who_is_squashed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("authorized_clients");
    let key = keys(1)[0].public();
    let nobody = Nobody::default();
    let cases = [
        ("", Squash::Root(nobody), ""),
        (" squash=root", Squash::Root(nobody), ""),
        (" squash=none", Squash::None, " squash=none"),
        (" squash=all", Squash::All(nobody), " squash=all"),
        (" squash=all:7:8", Squash::All(Nobody { uid: 7, gid: 8 }), " squash=all:7:8"),
    ];
    let token: Token = run(3, move |env| async move { Token::generate(&env, &key).unwrap() });
    for (written, squash, shown) in cases {
        let client: Client = format!("{key} alice / rw{written}").parse().unwrap();
        assert_eq!(client.squash, squash, "{written}");
        assert_eq!(client.to_string(), format!("{key} alice / rw{shown}"));
        let offers = folder.path().join("offers");
        Offer::new(&token, &client, 100).add_to(&offers, 50).unwrap();
        let found = Offer::find(&offers, &token.secret(), key, 60).unwrap().unwrap();
        let enrolled = Offer::redeem(&offers, &path, &token.secret(), key, 60).unwrap();
        assert_eq!(enrolled, Some(found));
        let read = Authorized::update(&path, |all| Ok(all.remove("alice"))).unwrap();
        assert_eq!(read, Some(client));
    }
}

#[test]
fn a_token_enrols_once_until_it_expires() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("offers");
    let keys: Vec<PublicKey> = keys(3).iter().map(Key::public).collect();
    let tokens: Vec<Token> =
        run(
            2,
            |env| async move { (0..3).map(|_| Token::generate(&env, &keys[0]).unwrap()).collect() },
        );
    let keys: Vec<PublicKey> = self::keys(3).iter().map(Key::public).collect();
    let again: Token = tokens[0].to_string().parse().unwrap();
    assert_eq!(again, tokens[0]);
    assert!(again.is_of(&keys[0]) && !again.is_of(&keys[1]));
    for text in ["", "thwg1-", "thwg1-AAAA", &format!("{again}A")] {
        assert!(text.parse::<Token>().is_err(), "{text}");
    }
    // What a client is called does not depend on the key that it will have.
    let client = |name| Client::new(keys[0], name).unwrap();
    Offer::new(&tokens[0], &client("alice"), 100).add_to(&path, 50).unwrap();
    Offer::new(&tokens[1], &client("bob"), 100).add_to(&path, 50).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains(&tokens[0].to_string()[6..20]), "the file has a secret");
    let clients = folder.path().join("authorized_clients");
    let take = |token: &Token, now| {
        let found = Offer::find(&path, &token.secret(), keys[2], now).unwrap();
        let taken = Offer::redeem(&path, &clients, &token.secret(), keys[2], now).unwrap();
        assert_eq!(found, taken);
        taken
    };
    assert_eq!(take(&tokens[2], 60), None);
    let alice = take(&tokens[0], 100).unwrap();
    assert_eq!((alice.key, &alice.name[..]), (keys[2], "alice"));
    assert_eq!(take(&tokens[0], 60), None, "it was used");
    assert_eq!(take(&tokens[1], 101), None, "it has expired");
    // What cannot be added leaves the token valid.
    let refused = Offer::redeem(&path, &clients, &tokens[1].secret(), keys[2], 60);
    assert!(matches!(refused, Err(KeyError::Invalid(_))), "the key is known already");
    let bob = Offer::redeem(&path, &clients, &tokens[1].secret(), keys[1], 60).unwrap();
    assert_eq!(bob.unwrap().name, "bob");
}

/// Runs a change on several threads at once; what they returned.
fn at_once<T: Send>(change: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let change = &change;
        let threads: Vec<_> = (0..8).map(|number| scope.spawn(move || change(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn of_several_clients_at_once_one_gets_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("offers");
    let keys: Vec<PublicKey> = keys(8).iter().map(Key::public).collect();
    for seed in 0..20 {
        let clients = folder.path().join(format!("clients{seed}"));
        let server = keys[0];
        let token = run(seed, |env| async move { Token::generate(&env, &server).unwrap() });
        Offer::new(&token, &Client::new(server, "alice").unwrap(), 100).add_to(&path, 50).unwrap();
        let taken = at_once(|number| {
            Offer::redeem(&path, &clients, &token.secret(), keys[number], 60).unwrap()
        });
        assert_eq!(taken.into_iter().flatten().count(), 1);
    }
}

#[test]
fn no_change_of_the_clients_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("authorized_clients");
    let keys: Vec<PublicKey> = keys(8).iter().map(Key::public).collect();
    at_once(|number| {
        let client = Client::new(keys[number], &format!("client{number}")).unwrap();
        Authorized::update(&path, |authorized| authorized.add(client)).unwrap();
    });
    assert_eq!(Authorized::read(&path).unwrap().clients().count(), 8);
    at_once(|number| {
        let name = format!("client{number}");
        Authorized::update(&path, |authorized| Ok(authorized.remove(&name))).unwrap().unwrap();
    });
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
}
