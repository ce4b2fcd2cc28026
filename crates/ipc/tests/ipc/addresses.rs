//! Addresses of volumes on other machines.

use thalweg_env::Env;
use thalweg_ipc::remote::{Advice, PORT, Remote, Server};
use thalweg_net::keys::{Home, Key};
use tokio::net::TcpListener;

#[test]
fn servers_have_a_host_and_a_port() {
    let read = |text: &str| text.parse::<Server>().map(|server| server.to_string());
    assert_eq!(read("db1.example:7000").unwrap(), "db1.example:7000");
    assert_eq!(read("10.0.0.1").unwrap(), format!("10.0.0.1:{PORT}"));
    assert_eq!(read("[::1]:7000").unwrap(), "[::1]:7000");
    assert_eq!(read("[::1]").unwrap(), format!("[::1]:{PORT}"));
    for text in ["", ":7000", "a:", "a:0", "a:70000", "::1", "[::1", "[a]:1", "a b", "[::1]x"] {
        assert!(read(text).unwrap_err().to_string().contains("HOST:PORT"), "{text}");
    }
}

#[test]
fn volumes_are_addressed_by_scheme_and_name() {
    let read = |text: &str| Remote::of(text).unwrap().map(|remote| remote.to_string());
    assert_eq!(read("thalweg://a:1/vol").unwrap(), "thalweg://a:1/vol");
    assert_eq!(read("thalweg://a/vol").unwrap(), format!("thalweg://a:{PORT}/vol"));
    for text in ["thalweg://", "thalweg://a", "thalweg://a/", "thalweg:///v", "thalweg://a/b/c"] {
        assert!(read(text).is_err(), "{text}");
    }
    assert!(Remote::of("/srv/vol").is_none() && Remote::of("thalweg:vol").is_none());
}

#[tokio::test]
async fn errors_say_what_the_caller_must_do() {
    let env = Env::real();
    let folder = tempfile::tempdir().unwrap();
    let home = Home::at(folder.path().join("keys"));
    let refused = Remote::of("thalweg://a").unwrap().unwrap_err();
    assert_eq!(refused.advice(), Advice::Invalid);
    // A port that nothing listens on any more.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap().to_string();
    drop(listener);
    let remote = Remote::of(&format!("thalweg://{server}/vol")).unwrap().unwrap();
    let refused = async || remote.connect(&env, &home).await.unwrap_err();
    let no_key = refused().await;
    assert_eq!(no_key.advice(), Advice::NotPermitted);
    assert!(no_key.to_string().contains("thalweg key new"), "{no_key}");
    let key = Key::generate(&env).unwrap();
    home.add_key(&key).unwrap();
    let unknown = refused().await;
    assert_eq!(unknown.advice(), Advice::NotPermitted);
    assert!(unknown.to_string().contains("not known here"), "{unknown}");
    home.trust(&server, &key.public()).unwrap();
    let unreachable = refused().await;
    assert_eq!(unreachable.advice(), Advice::Retry);
    assert!(unreachable.to_string().contains(&server), "{unreachable}");
}
