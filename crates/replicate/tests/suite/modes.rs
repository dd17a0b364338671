//! Permissions: restored files have those of the shipped database.

use crate::place;

use place::{Killed, Place, said, until};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}

#[test]
fn files_made_from_a_store_have_the_permissions_of_the_database() {
    for wanted in [0o600, 0o640, 0o664, 0o444, 0o4755] {
        let place = Place::new(10);
        fs::set_permissions(&place.file, Permissions::from_mode(wanted)).unwrap();
        place.once(&[]);
        let wanted = wanted & 0o777;
        let made = |args: &[&str], name: &str| {
            let path = place.dir.path().join(name);
            let mut command = Command::new("sh");
            command.args(["-c", "umask 027; exec \"$@\"", "sh"]).arg(place.program(&[]).get_program());
            match args {
                ["promote"] => command.args(args).arg(&path).arg(place.url()),
                _ => command.args(args).arg(place.url()).arg(&path),
            };
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", said(&output));
            mode(&path)
        };
        assert_eq!(made(&["restore"], "r.db"), wanted);
        assert_eq!(made(&["restore", "--txid", "1"], "t.db"), wanted);
        assert_eq!(made(&["follow", "--once"], "f.db"), wanted | 0o600, "who follows writes it");
        assert_eq!(made(&["promote"], "p.db"), wanted);
        // The new owner's record keeps them.
        assert_eq!(made(&["restore"], "s.db"), wanted);
        fs::set_permissions(&place.file, Permissions::from_mode(0o620)).unwrap();
        place.sql("DELETE FROM t WHERE n = 3");
        assert_eq!(made(&["promote"], "q.db"), wanted);
        let output = place.program(&["rejoin", place.file.to_str().unwrap(), &place.url()]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(mode(&place.file), 0o620, "that of the file it takes the place of");
    }
}

#[test]
fn permissions_that_change_are_recorded_by_the_shipper_that_runs() {
    let place = Place::new(10);
    fs::set_permissions(&place.file, Permissions::from_mode(0o644)).unwrap();
    let mut shipper = Killed(place.replicate(&["--interval", "10ms"]).spawn().unwrap());
    until("the first snapshot", || !place.names(0).is_empty());
    fs::set_permissions(&place.file, Permissions::from_mode(0o600)).unwrap();
    let record = || fs::read_to_string(place.store().join("owner.json")).unwrap();
    until("it is recorded", || record().contains("\"0600\""));
    place.sql("DELETE FROM t WHERE n = 3");
    until("it goes on", || place.names(0).len() > 1);
    assert!(shipper.0.try_wait().unwrap().is_none());
    assert_eq!(mode(&place.restore(&[])), 0o600);
}

/// A store of Litestream or of an earlier version has none; a record gives no set-user-ID.
#[test]
fn where_the_store_tells_no_permissions_the_owner_alone_has_any() {
    let place = Place::new(10);
    fs::set_permissions(&place.file, Permissions::from_mode(0o666)).unwrap();
    place.once(&[]);
    assert_eq!(mode(&place.restore(&[])), 0o666);
    let owner = place.store().join("owner.json");
    for told in ["6666", "-1", "rw", "99999999999999999999", ""] {
        let record = fs::read_to_string(&owner).unwrap();
        let begin = record.find("\"mode\": \"").unwrap() + 9;
        let end = begin + record[begin..].find('"').unwrap();
        fs::write(&owner, format!("{}{told}{}", &record[..begin], &record[end..])).unwrap();
        assert_eq!(mode(&place.restore(&[])), 0o600, "{told}");
    }
    fs::remove_file(&owner).unwrap();
    assert_eq!(mode(&place.restore(&[])), 0o600);
}
