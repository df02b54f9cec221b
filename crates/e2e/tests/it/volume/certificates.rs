//! A volume on a network that is not trusted: certificates of an authority that the volume has for itself.

use nectary_e2e::live::missing;
use nectary_e2e::nbd::{NbdServer, try_run};
use nectary_e2e::ram::DonorProcess;
use nectary_e2e::report::not_run;
use nectary_e2e::volume::VolumeRig;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The options of a server, or of a mount, with the files of a host.
fn options(folder: &Path, host: &str, authority: &str) -> Vec<String> {
    let at = |name: &str| folder.join(name).display().to_string();
    let pair = |name: &str, value: String| [name.to_owned(), value];
    [
        pair("--tls-cert", at(&format!("{host}.pem"))),
        pair("--tls-key", at(&format!("{host}.key"))),
        pair(authority, at("ca.pem")),
    ]
    .concat()
}

fn words(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

/// Certificates are made once, and shown.
#[test]
fn certificates_are_never_overwritten() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let volume = VolumeRig::new("256M").unwrap_or_else(|error| panic!("{error:#}"));
    let at = |name: &str| volume.scratch.join(name).display().to_string();
    let (pki, h1) = (at("pki"), at("h1"));
    let (code, text) = volume.try_run(&["volume", "cert", "host", &pki, "h1", "--out", &h1]).expect("it runs");
    assert!(code == Some(4) && text.contains("cert init"), "{text}");
    volume.run(&["volume", "cert", "init", &pki, "--name", "builds"]).expect("it is made");
    let host = ["volume", "cert", "host", &pki, "h1.example,h1,10.0.0.1", "--out", &h1];
    let said = volume.run(&host).expect("it is made");
    assert!(said.contains("--tls-client-ca") && said.contains("until 20"), "{said}");
    for secret in ["pki/ca.key", "h1/h1.example.key"] {
        let mode = fs::metadata(volume.scratch.join(secret)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    let before = fs::read(volume.scratch.join("h1/h1.example.pem")).expect("it is there");
    for (again, file) in [(&host[..], "h1.example.key"), (&["volume", "cert", "init", &pki][..], "ca.key")] {
        let (code, text) = volume.try_run(again).expect("it runs");
        assert!(code == Some(1) && text.contains(file) && text.contains("it is there already"), "{text}");
    }
    assert_eq!(fs::read(volume.scratch.join("h1/h1.example.pem")).expect("it is there"), before);
    let (code, text) = volume.try_run(&["volume", "cert", "host", &pki, "../h1", "--out", &h1]).expect("it runs");
    assert!(code == Some(2) && text.contains("neither a name"), "{text}");
    let shown = volume.run(&["volume", "cert", "show", &at("h1/h1.example.pem"), "--json"]).expect("it is read");
    let shown: Value = serde_json::from_str(&shown).expect("it is JSON");
    let shown = &shown["certificates"][0];
    assert_eq!(shown["hosts"], serde_json::json!(["h1.example", "h1", "10.0.0.1"]));
    assert_eq!((shown["issuer"].as_str(), shown["authority"].as_bool()), (Some("builds"), Some(false)));
    assert!(shown["days_left"].as_i64().is_some_and(|days| (728..=730).contains(&days)), "{shown}");
    // One that ends soon is degraded.
    let short = ["volume", "cert", "host", &pki, "short", "--out", &h1, "--days", "7"];
    volume.run(&short).expect("it is made");
    let (code, text) = volume.try_run(&["volume", "cert", "show", &at("h1/short.pem")]).expect("it runs");
    assert!(code == Some(3) && text.contains(" days left"), "{text}");
}

/// Other hosts get the reason for the refusal.
#[test]
fn only_hosts_of_authority_mount() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("512M").unwrap_or_else(|error| panic!("{error:#}"));
    volume.stop_server().unwrap_or_else(|error| panic!("{error:#}"));
    let folder = |name: &str| volume.scratch.join(name);
    let at = |name: &str| folder(name).display().to_string();
    // Two authorities of the same name are two authorities.
    for (authority, host, out) in [("pki", "h1,127.0.0.1", "h1"), ("pki", "h2", "h2"), ("other", "h3", "h3")] {
        if !folder(authority).exists() {
            volume.run(&["volume", "cert", "init", &at(authority)]).expect("it is made");
        }
        let days = if host == "h2" { "20" } else { "730" };
        let make = ["volume", "cert", "host", &at(authority), host, "--out", &at(out), "--days", days];
        volume.run(&make).expect("it is made");
    }
    let (h1, h2, h3) = (folder("h1"), folder("h2"), folder("h3"));
    let address = volume.serve_at("127.0.0.1:0", &words(&options(&h1, "h1", "--tls-client-ca")));
    let address = address.unwrap_or_else(|error| panic!("{error:#}"));
    // A certificate serves both sides.
    let mounted: Vec<_> = [(&h1, "h1"), (&h2, "h2")]
        .map(|(folder, host)| volume.mount_from(&address, &words(&options(folder, host, "--tls-ca"))))
        .into_iter()
        .map(|mounted| mounted.unwrap_or_else(|error| panic!("{error:#}")))
        .collect();
    fs::write(mounted[0].join("file"), b"encrypted").expect("it is written");
    assert_eq!(fs::read(mounted[1].join("file")).expect("it is read"), b"encrypted");
    assert!(!volume.log("m0").contains("it ends on") && volume.log("m1").contains("h2.pem: it ends on 20"));
    let (disk, refused) = (volume.disk(), volume.scratch.join("refused").display().to_string());
    fs::create_dir(&refused).expect("it is made");
    let elsewhere = address.replace("127.0.0.1", "localhost");
    let ca = |folder: &Path| vec!["--tls-ca".to_owned(), folder.join("ca.pem").display().to_string()];
    let mut mixed = options(&h3, "h3", "--tls-ca");
    mixed.truncate(4);
    mixed.extend(ca(&h2));
    for (who, server, options, why) in [
        ("without TLS", &address, Vec::new(), "it wants TLS (--tls-ca)"),
        ("without a certificate", &address, ca(&h2), "it requires a certificate: give --tls-cert"),
        ("of another authority", &address, mixed, "it does not accept the certificate of this side"),
        ("that trusts another one", &address, options(&h3, "h3", "--tls-ca"), "not of the authority that is trusted"),
        ("by another name", &elsewhere, options(&h2, "h2", "--tls-ca"), "its certificate is for another host"),
    ] {
        let mount = [&["volume", "mount", &disk, &refused, "--server", server], &words(&options)[..]].concat();
        let (code, text) = volume.try_run(&mount).unwrap_or_else(|error| panic!("{who}: {error:#}"));
        assert!(code == Some(1) && text.contains(why), "{who}: {text}");
        assert_eq!(fs::read_dir(&refused).expect("it is no mount").count(), 0);
    }
    let log = volume.log("server");
    assert!(log.contains("it showed no certificate") || log.contains("does not speak TLS"), "{log}");
    // A server of this authority, and one that wants no TLS.
    volume.kill_server();
    let address = volume.serve_at("127.0.0.1:0", &[]).unwrap_or_else(|error| panic!("{error:#}"));
    let mount = ["volume", "mount", &disk, &refused, "--server", &address];
    let secured = options(&h2, "h2", "--tls-ca");
    let (code, text) = volume.try_run(&[&mount, &words(&secured)[..]].concat()).expect("it runs");
    assert!(code == Some(1) && text.contains("see whether it serves with --tls-cert"), "{text}");
}

/// One authority serves exports, RAM disks and volumes.
#[test]
fn authority_covers_all_parts() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("256M").unwrap_or_else(|error| panic!("{error:#}"));
    volume.stop_server().unwrap_or_else(|error| panic!("{error:#}"));
    let at = |name: &str| volume.scratch.join(name).display().to_string();
    let run = |arguments: &[&str]| {
        let (status, text) = try_run(volume.scratch.path(), "nectary", arguments).expect("it runs");
        (status.code(), text)
    };
    let done = |arguments: &[&str]| {
        let (code, text) = run(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {text}");
        text
    };
    let (pki, server, client) = (at("pki"), at("server"), at("client"));
    done(&["cert", "init", &pki]);
    done(&["cert", "server", &pki, "localhost,127.0.0.1", "--out", &server]);
    let said = done(&["cert", "client", &pki, "h2", "--out", &client]);
    assert!(said.contains(&format!("?tls-certificates={client}")), "{said}");
    let file = |folder: &str, name: &str| format!("{folder}/{name}");
    let (cert, key) = (file(&server, "server-cert.pem"), file(&server, "server-key.pem"));
    let ca = file(&server, "ca-cert.pem");
    let serving = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
    // An export, by the directory in the URL; nobody without a certificate of a client.
    let folder = volume.scratch.path();
    let export = NbdServer::nectary(folder, "export", &[&["memory:1M"][..], &serving].concat()).expect("it serves");
    let url = |folder: &str| format!("nbds+unix:///?socket={}&tls-certificates={folder}", export.socket.display());
    done(&["nbd", "info", &url(&client)]);
    let (code, text) = run(&["nbd", "info", &url(&server)]);
    assert!(code == Some(1) && text.contains("equires a certificate"), "{text}");
    // A certificate of a server is none of a client.
    let [as_ca, as_cert, as_key] = ["--tls-ca", "--tls-cert", "--tls-key"];
    let plain = format!("nbds+unix:///?socket={}", export.socket.display());
    let (code, text) = run(&["nbd", "info", &plain, as_ca, &ca, as_cert, &cert, as_key, &key]);
    assert!(code == Some(1), "{text}");
    assert!(export.terminate().expect("it ends").0.success());
    // A network RAM disk.
    let donor = DonorProcess::start(&volume.scratch, "donor", None, &[&["--memory", "8M"][..], &serving].concat());
    let donor = donor.expect("it serves");
    let spec = format!("ram(\"nbds://{}/?tls-certificates={client}\",id=disk,size=4M)", donor.address);
    done(&["ram", "create", &spec]);
    done(&["ram", "delete", &spec]);
    // A volume.
    let (cert, key) = (file(&client, "client-cert.pem"), file(&client, "client-key.pem"));
    let address = volume.serve_at("127.0.0.1:0", &serving).unwrap_or_else(|error| panic!("{error:#}"));
    let mounting = ["--tls-cert", &cert, "--tls-key", &key, "--tls-ca", &ca];
    let mounted = volume.mount_from(&address, &mounting).unwrap_or_else(|error| panic!("{error:#}"));
    fs::write(mounted.join("file"), b"encrypted").expect("it is written");
}
