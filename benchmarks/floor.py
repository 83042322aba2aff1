"""The bare loop: a shell and two commits a task, and nothing that makes a runner useful."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

tasks = json.loads(Path("plan.json").read_text())
database = sqlite3.connect("floor.db", isolation_level=None)
database.execute("PRAGMA journal_mode = WAL")
database.execute("PRAGMA synchronous = FULL")
database.execute("CREATE TABLE IF NOT EXISTS task (id TEXT PRIMARY KEY, state TEXT)")
done = {row[0] for row in database.execute("SELECT id FROM task WHERE state = 'done'")}
for task in tasks:
    if "status" in sys.argv:
        print(task["id"], "done" if task["id"] in done else "to do")
    elif task["id"] not in done:
        database.execute("INSERT OR REPLACE INTO task VALUES (?, 'running')", (task["id"],))
        if subprocess.run(["sh", "-c", task["command"]], check=False).returncode:
            sys.exit(f"{task['id']} failed")
        database.execute("UPDATE task SET state = 'done' WHERE id = ?", (task["id"],))
