"Answers that several questions of a test rest on, computed once."
import pickle


def asked_once(function):
    "A function that remembers what it was asked, for tests that change no answer."
    known = {}

    def once(*about, **more):
        asked = pickle.dumps((about, more))
        if asked not in known: known[asked] = function(*about, **more)
        return known[asked]
    return once
