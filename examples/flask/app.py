"""Notes over HTTP with Flask and SQLAlchemy: `gunicorn app:app`."""

import os

from flask import Flask, request
from sqlalchemy import create_engine, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

engine = create_engine("sqlite+onewrite:///" + os.environ.get("DATABASE", "notes.db"))
app = Flask(__name__)


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]


# Before the workers are forked: each makes connections of its own.
Base.metadata.create_all(engine)
engine.dispose()


@app.get("/notes")
def index():
    with Session(engine) as session:
        return [note.text for note in session.scalars(select(Note).order_by(Note.id))]


@app.post("/notes")
def create():
    with Session(engine) as session:
        session.add(Note(text=request.get_json()["text"]))
        session.commit()
    return {}, 201


@app.get("/status")
def status():
    with engine.connect() as connection:
        return {"onewrite": connection.scalar(text("SELECT onewrite_status()"))}
