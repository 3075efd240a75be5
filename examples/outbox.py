"""Orders, each with a mail and a call of another service that follow when it is committed.

python examples/outbox.py order Rex 7
python -m aioretry outbox run examples.outbox:relay

MONGODB_URI, WEBHOOK (an address) and SMTP (host:port) are in the environment.
"""

import argparse
import asyncio
import os
import smtplib
from email.message import EmailMessage

import httpx

from aioretry import run_transaction
from aioretry.outbox import Entry, Outbox, Relay, Undeliverable
from aioretry.pymongo import AsyncRetryClient, AsyncRetryClientSession

URI = os.environ.get("MONGODB_URI", "mongodb://localhost/?replicaSet=rs0")
WEBHOOK = os.environ.get("WEBHOOK", "http://localhost:8080/orders")
SMTP = os.environ.get("SMTP", "localhost:25")


async def order(client: AsyncRetryClient, customer: str, article: int) -> str:
    outbox = Outbox(client.shop.outbox)

    async def place(session: AsyncRetryClientSession) -> str:
        placed = {"customer": customer, "article": article}
        result = await client.shop.orders.insert_one(placed, session=session)
        told = {"order": str(result.inserted_id), "customer": customer, "article": article}
        await outbox.add(session, "webhook", told, key=customer)
        return await outbox.add(session, "mail", told, key=f"mail {customer}")

    return await run_transaction(client, place, timeout=20.0)


async def call_webhook(entry: Entry) -> None:
    # The same key each time that it is called: the receiver does it once.
    async with httpx.AsyncClient(timeout=10.0) as web:
        answer = await web.post(WEBHOOK, json=entry.payload, headers={"Idempotency-Key": entry.id})
    if answer.status_code in {400, 404, 410, 422}:
        raise Undeliverable(f"the receiver answers {answer.status_code}")
    answer.raise_for_status()


def send_mail(entry: Entry) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"] = "shop@example.org", f"{entry.payload['customer']}@example.org"
    mail["Subject"] = f"Your order of {entry.payload['article']}"
    mail["Message-ID"] = f"<{entry.id}@example.org>"  # mail that comes twice is shown once
    host, _, port = SMTP.partition(":")
    with smtplib.SMTP(host, int(port), "shop.example.org", timeout=10.0) as server:
        try:
            server.send_message(mail)
        except smtplib.SMTPRecipientsRefused as exc:
            raise Undeliverable("the address is refused") from exc


async def deliver(entry: Entry) -> None:
    match entry.kind:
        case "webhook":
            await call_webhook(entry)
        case "mail":
            await asyncio.to_thread(send_mail, entry)
        case kind:
            raise Undeliverable(f"nobody knows the kind {kind}")


def relay() -> Relay:
    return Relay(Outbox(AsyncRetryClient(URI).shop.outbox), deliver)


async def main(customer: str, article: int) -> None:
    async with AsyncRetryClient(URI) as client:
        print(await order(client, customer, article))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Place an order.")
    parser.add_argument("command", choices=["order"])
    parser.add_argument("customer")
    parser.add_argument("article", type=int)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.customer, arguments.article))
