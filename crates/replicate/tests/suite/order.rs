//! The order of arguments, and the line at the end of work.

use crate::place;

use place::{Place, said};
use serde_json::Value;

#[test]
fn another_order_is_answered_with_the_right_one() {
    let place = Place::new(1);
    let (file, url) = ("/no where/app.db", "s3://reader:secret@bucket/app?region=eu");
    for (name, first, right) in [
        ("promote", [url, file], "takes FILE URL"),
        ("rejoin", [url, file], "takes FILE URL"),
        ("replicate", [url, file], "takes FILE URL"),
        ("verify", [url, file], "takes FILE URL"),
        ("restore", [file, url], "takes URL DEST"),
        ("follow", [file, url], "takes URL FILE"),
    ] {
        let output = place.program(&[name, first[0], first[1]]).output().unwrap();
        let text = said(&output);
        assert!(output.status.code() == Some(2) && text.contains(right), "{name}: {text}");
        let quoted = |word: &str| if word == file { "'/no where/app.db'" } else { "bucket/app?region=eu'" }.to_owned();
        let line = text.lines().find(|line| line.starts_with(&format!("    onewrite {name} "))).unwrap();
        assert!(line.ends_with(&quoted(first[0])) && line.contains(&quoted(first[1])), "{name}: {text}");
        assert!(!text.contains("secret"), "{text}");
    }
}

#[test]
fn options_stay_where_they_are() {
    let place = Place::new(1);
    let args = ["restore", "a.db", "--txid", "5", "file:///backup"];
    let output = place.program(&args).output().unwrap();
    let line = "\n    onewrite restore file:///backup --txid 5 a.db\n";
    assert!(output.status.code() == Some(2) && said(&output).contains(line), "{}", said(&output));
}

#[test]
fn long_work_names_itself_at_its_end() {
    let place = Place::new(100);
    let (file, url) = (place.file.to_str().unwrap().to_owned(), place.url());
    let run = |args: &[&str]| {
        let output = place.program(args).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stderr).unwrap()
    };
    let ended = |text: &str| -> Value {
        let line: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(line["event"], "ended", "{text}");
        line
    };
    let shipped = ended(&run(&["replicate", "--json", "--once", &file, &url]));
    assert!(shipped["files"] == 1 && shipped["pages"].as_u64() > Some(5), "{shipped}");
    assert!(shipped["bytes"].as_u64() > Some(20_000) && shipped["seconds"].is_number(), "{shipped}");
    let again = run(&["replicate", "--once", &file, &url]);
    assert!(again.contains("done: 0 files, 0 pages, 0 bytes, ") && !again.contains("Took "), "{again}");
    let replica = place.dir.path().join("replica.db");
    let followed = ended(&run(&["follow", "--json", "--once", &url, replica.to_str().unwrap()]));
    assert!(followed["requests"].as_u64() > Some(0), "{followed}");
    let restored = run(&["restore", "--json", &url, place.dir.path().join("restored.db").to_str().unwrap()]);
    let restored: Value = serde_json::from_str(&restored).unwrap();
    assert_eq!(restored["bytes"].as_u64(), Some(std::fs::metadata(&place.file).unwrap().len()), "{restored}");
    assert!(restored["seconds"].is_number(), "{restored}");
}
