"""Clients of an engine's server, and what they ask."""

import concurrent.futures
import http.client
import random
import time


def prompts(lengths):
    """Of so many tokens each; the same in each process."""
    source = random.Random(5)
    return [[source.randrange(3, 2000) for _ in range(length)]
            for length in lengths]


def crowd(complete, clients, tokens, seconds):
    """Clients that each ask again once they are answered. complete(prompt):
    the tokens that follow it; OSError, ValueError, HTTPException: none do."""
    asked = prompts([64] * clients)
    begin = time.monotonic()
    took, failed = [], []

    def client(number):
        while (sent := time.monotonic()) < begin + seconds:
            try:
                got = complete(asked[number])
                if len(got) != tokens:
                    raise ValueError(f"{len(got)} tokens")
                took.append(time.monotonic() - sent)
            except (OSError, ValueError, http.client.HTTPException) as error:
                failed.append(repr(error))

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return {"answers": len(took), "failed": len(failed), "why": failed[:1],
            "worst_s": max(took, default=0),
            "rate": len(took) * tokens / (time.monotonic() - begin)}
